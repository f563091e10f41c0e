#include "ptx/stmatrix.cuh"

#include <cstring>

#include "ptx/shared_rows.h"

namespace emu {
namespace {

const char* op_name(int matrices, bool transpose) {
  if (matrices == 1) return transpose ? "stmatrix.x1.trans" : "stmatrix.x1";
  if (matrices == 2) return transpose ? "stmatrix.x2.trans" : "stmatrix.x2";
  return transpose ? "stmatrix.x4.trans" : "stmatrix.x4";
}

struct StoreLane {
  const uint32_t* regs;
  SharedAddress row;
};

}  // namespace

void stmatrix(void* s_row, const uint32_t* regs, int matrices, bool transpose) {
  const Pc where = EMU_CALLER;
  const char* op = op_name(matrices, transpose);
  StoreLane mine = {regs, {}};
  if (lane_of(self()) < kMatrixRows * matrices) mine.row = touch_matrix_row(s_row, Access::kWrite, op, where);
  warp_together(op, where, mine, [&](auto&& lane) {
    count_matrix_wavefronts(where, "stmatrix", matrices, [&](int i) { return lane(i).row; });
    for (int i = 0; i < 32 * matrices * 2; ++i) {
      const int from = i / 2 % 32, half = i % 2, matrix = i / 64;
      const MatrixElement at = matrix_element(from, half, transpose);
      const auto element = static_cast<uint16_t>(lane(from).regs[matrix] >> 16 * half);
      std::memcpy(data(lane(matrix * kMatrixRows + at.row).row) + at.col * sizeof element, &element, sizeof element);
    }
  });
}

}  // namespace emu
