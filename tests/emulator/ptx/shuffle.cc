#include "ptx/shuffle.cuh"

namespace emu {
namespace {

struct ShuffleLane {
  uint32_t given, taken;
};

}  // namespace

uint32_t shuffle_xor(uint32_t value, int mask) {
  ShuffleLane mine = {value, 0};
  warp_together("shfl.bfly", EMU_CALLER, mine, [&](auto&& lane) {
    for (int i = 0; i < 32; ++i) lane(i).taken = lane(i ^ mask).given;
  });
  return mine.taken;
}

}  // namespace emu
