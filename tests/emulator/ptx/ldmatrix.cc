#include "ptx/ldmatrix.cuh"

#include <cstring>

#include "ptx/shared_rows.h"

namespace emu {
namespace {

const char* op_name(int matrices, bool transpose) {
  if (matrices == 1) return transpose ? "ldmatrix.x1.trans" : "ldmatrix.x1";
  if (matrices == 2) return transpose ? "ldmatrix.x2.trans" : "ldmatrix.x2";
  return transpose ? "ldmatrix.x4.trans" : "ldmatrix.x4";
}

struct LoadLane {
  uint32_t* regs;
  SharedAddress row;
};

uint32_t load_register(const unsigned char* const (&rows)[kMatrixRows], int lane, bool transpose) {
  uint32_t bits = 0;
  for (int half = 0; half < 2; ++half) {
    const MatrixElement at = matrix_element(lane, half, transpose);
    uint16_t element;
    std::memcpy(&element, rows[at.row] + at.col * sizeof element, sizeof element);
    bits |= static_cast<uint32_t>(element) << 16 * half;
  }
  return bits;
}

}  // namespace

void ldmatrix(uint32_t* regs, const void* s_row, int matrices, bool transpose) {
  const Pc where = EMU_CALLER;
  const char* op = op_name(matrices, transpose);
  LoadLane mine = {regs, {}};
  if (lane_of(self()) < kMatrixRows * matrices) mine.row = touch_matrix_row(s_row, Access::kRead, op, where);
  warp_together(op, where, mine, [&](auto&& lane) {
    count_matrix_wavefronts(where, "ldmatrix", matrices, [&](int i) { return lane(i).row; });
    for (int matrix = 0; matrix < matrices; ++matrix) {
      const unsigned char* rows[kMatrixRows];
      for (int i = 0; i < kMatrixRows; ++i) rows[i] = data(lane(matrix * kMatrixRows + i).row);
      for (int i = 0; i < 32; ++i) lane(i).regs[matrix] = load_register(rows, i, transpose);
    }
  });
}

}  // namespace emu
