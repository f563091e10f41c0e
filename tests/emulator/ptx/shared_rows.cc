#include "ptx/shared_rows.h"

#include <algorithm>

namespace emu {

SharedAddress own_shared_address(const void* pointer, size_t bytes, size_t alignment, const char* what, Pc where) {
  const SharedAddress address = shared_address(pointer, bytes, alignment, what, where);
  if (address.cta != &cta_of(self())) {
    fatal(Kind::kOutOfBounds, where,
          std::string(what) + " of the shared memory of the CTA of rank " + std::to_string(rank_of(*address.cta)) +
              " by a CTA of rank " + std::to_string(rank_of(cta_of(self()))) + ": it can only access its own");
  }
  return address;
}

SharedAddress touch_matrix_row(const void* s_row, Access access, const char* what, Pc where) {
  const SharedAddress row = own_shared_address(s_row, kMatrixRowBytes, kMatrixRowBytes, what, where);
  touch_shared(this_thread(what, where), row, kMatrixRowBytes, access);
  return row;
}

int matrix_wavefronts(const std::array<uint32_t, kMatrixRows>& offsets) {
  constexpr uint32_t kGroups = 8;  // 32 banks of 4 bytes, four to a row
  std::array<int, kGroups> wavefronts = {};
  for (size_t i = 0; i < offsets.size(); ++i) {
    const auto end = offsets.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(offsets.begin(), end, offsets[i]) == end) ++wavefronts[offsets[i] / kMatrixRowBytes % kGroups];
  }
  return *std::max_element(wavefronts.begin(), wavefronts.end());
}

}  // namespace emu
