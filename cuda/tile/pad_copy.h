// Copies an operand into the workspace with its rows and columns rounded up and zeros in between, for kernels that can
// only read whole tiles or whole vectors. Both operands are zero there, so that nothing (not even 0 * NaN) reaches a
// valid output.
//
// The copy keeps the storage order: a transposed operand stays transposed.
#pragma once

#include <cstdint>
#include <string>

#include "gemm.h"

namespace jaxgemm {

// The dense view of a padded copy of `view`: rows and columns rounded up to multiples of `multiple`. A matrix that all
// batches share stays shared.
inline MatrixView padded_view(const MatrixView& view, int64_t multiple) {
  const int64_t rows = (view.rows + multiple - 1) / multiple * multiple;
  const int64_t cols = (view.cols + multiple - 1) / multiple * multiple;
  return {.rows = rows,
          .cols = cols,
          .ld = view.transposed ? rows : cols,
          .batch_stride = view.batch_stride == 0 ? 0 : rows * cols,
          .transposed = view.transposed};
}

// What a view from padded_view() takes in the workspace, such that the next buffer is aligned too.
inline int64_t padded_bytes(const MatrixView& padded, int64_t batch, int64_t element_bytes) {
  const int64_t copies = padded.batch_stride == 0 ? 1 : batch;
  const int64_t bytes = copies * padded.rows * padded.cols * element_bytes;
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

// Enqueues the copy of `from` (seen through `view`) to `to`, which gets the layout padded_view(view, multiple). The
// multiple must make every padded row a whole number of 16-byte vectors. Returns "" or what went wrong.
std::string pad_copy(void* to, const void* from, const MatrixView& view, int64_t multiple, int64_t batch, DType dtype,
                     void* stream);

// The operand of a launch: where it lies, and the rest of the workspace.
struct PaddableOperand {
  const void* data;
  MatrixView view;

  // Replaces it by a copy at `workspace`, padded to `multiple`, and moves `workspace` past the copy.
  std::string pad(char*& workspace, int64_t multiple, const Problem& problem, DType dtype, void* stream) {
    std::string error = pad_copy(workspace, data, view, multiple, problem.batch, dtype, stream);
    data = workspace;
    view = padded_view(view, multiple);
    workspace += padded_bytes(view, problem.batch, size_bytes(dtype));
    return error;
  }
};

}  // namespace jaxgemm
