// What cuda/tile/fragment.cuh says, for tests/emulated/test_fragments.py.
#include <string>

#include "tile/fragment.cuh"

namespace {

namespace fragment = jaxgemm::fragment;

constexpr int kLanes = 32;

// Rows and columns of all elements of all lanes, as JSON.
template <class Map>
std::string json(int elements, Map&& map) {
  std::string lanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    std::string coords;
    for (int i = 0; i < elements; ++i) {
      const fragment::Coord at = map(lane, i);
      coords += (i ? ", [" : "[") + std::to_string(at.row) + ", " + std::to_string(at.col) + "]";
    }
    lanes += (lane ? ", [" : "[") + coords + "]";
  }
  return "[" + lanes + "]";
}

template <int kElems>
std::string fragments() {
  return "{\"a\": " + json(4 * kElems, fragment::a<kElems>) + ", \"b\": " + json(2 * kElems, fragment::b<kElems>) +
         ", \"d\": " + json(4, fragment::d) + "}";
}

}  // namespace

// Of the shape with `elems` elements to a register.
extern "C" __attribute__((visibility("default"))) const char* emu_fragments(int elems) {
  static thread_local std::string answer;
  switch (elems) {
    case 1: answer = fragments<1>(); break;
    case 2: answer = fragments<2>(); break;
    case 4: answer = fragments<4>(); break;
    default: answer = "{\"exception\": \"registers hold 1, 2 or 4 elements\"}";
  }
  return answer.c_str();
}
