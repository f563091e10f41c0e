// What the warp-wide instructions on shared memory share.
#pragma once

#include <array>

#include "core/emu.h"

namespace emu {

// The address of an instruction that takes shared memory of the executing thread's own CTA only (.shared::cta).
SharedAddress own_shared_address(const void* pointer, size_t bytes, size_t alignment, const char* what, Pc where);

inline constexpr int kMatrixRows = 8, kMatrixRowBytes = 16;

// The executing thread's row of 16 bytes: checked and touched.
SharedAddress touch_matrix_row(const void* s_row, Access access, const char* what, Pc where);

// Eight rows of 16 bytes are accessed at a time, ideally each through four banks of its own.
int matrix_wavefronts(const std::array<uint32_t, kMatrixRows>& offsets);

// Counts the wavefronts of every matrix, whose rows are at row(8 * matrix + i).
template <class Row>
void count_matrix_wavefronts(Pc where, const char* what, int matrices, Row&& row) {
  for (int matrix = 0; matrix < matrices; ++matrix) {
    std::array<uint32_t, kMatrixRows> offsets;
    for (int i = 0; i < kMatrixRows; ++i) offsets[static_cast<size_t>(i)] = row(matrix * kMatrixRows + i).offset;
    count_wavefronts(where, what, matrix_wavefronts(offsets), 1);
  }
}

// Which element of its row a lane's register holds, `half` being 0 for the low 16 bits. PTX ISA, "ldmatrix": a register
// holds two neighbours of row lane / 4, or, transposed, of column lane / 4.
struct MatrixElement {
  int row, col;
};
inline MatrixElement matrix_element(int lane, int half, bool transpose) {
  const int along = lane % 4 * 2 + half, across = lane / 4;
  return transpose ? MatrixElement{along, across} : MatrixElement{across, along};
}

}  // namespace emu
