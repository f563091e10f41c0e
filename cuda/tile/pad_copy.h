// Copies an operand into the workspace with its rows and columns rounded up and zeros in between, for kernels that can
// only read whole tiles or whole vectors. Both operands are zero there, so that nothing (not even 0 * NaN) reaches a
// valid output.
//
// The copy keeps the storage order: a transposed operand stays transposed.
#pragma once

#include <cstdint>
#include <string>

#include "gemm.h"
#include "tile/alignment.h"

namespace jaxgemm {

// The view of a padded copy of `view`: rows and columns rounded up to multiples of `multiple`. Runs begin at multiples
// of `run_multiple`, if that is less than twice their length; what is between them is not written. A matrix that all
// batches share stays shared.
inline MatrixView padded_view(const MatrixView& view, int64_t multiple, int64_t run_multiple = 1) {
  const auto round_up = [](int64_t size, int64_t to) { return (size + to - 1) / to * to; };
  const int64_t rows = round_up(view.rows, multiple), cols = round_up(view.cols, multiple);
  const int64_t inner = view.transposed ? rows : cols, outer = view.transposed ? cols : rows;
  const int64_t ld = 2 * inner > run_multiple ? round_up(inner, run_multiple) : inner;
  return {.rows = rows,
          .cols = cols,
          .ld = ld,
          .batch_stride = view.batch_stride == 0 ? 0 : outer * ld,
          .transposed = view.transposed};
}

// Of whole vectors, at lines of the L2 cache.
inline MatrixView vectors_view(const MatrixView& view, DType dtype) {
  return padded_view(view, kVectorBytes / size_bytes(dtype), kL2LineBytes / size_bytes(dtype));
}

// What a view from padded_view() takes in the workspace, such that the next buffer is aligned too.
inline int64_t padded_bytes(const MatrixView& padded, int64_t batch, int64_t element_bytes) {
  const int64_t copies = padded.batch_stride == 0 ? 1 : batch;
  const int64_t bytes = copies * (padded.transposed ? padded.cols : padded.rows) * padded.ld * element_bytes;
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

// Enqueues the copy of `from` (seen through `view`) to `to`, which gets the layout `padded`, a padded_view() of `view`,
// whose runs must be whole 16-byte vectors. Returns "" or what went wrong.
std::string pad_copy(void* to, const void* from, const MatrixView& view, const MatrixView& padded, int64_t batch,
                     DType dtype, void* stream);

// The operand of a launch: where it lies, and the rest of the workspace.
struct PaddableOperand {
  const void* data;
  MatrixView view;

  bool aligned(DType dtype) const { return runs_aligned(data, view, size_bytes(dtype)); }
  bool whole_vectors(DType dtype) const { return at_vector(data) && made_of_vectors(view, size_bytes(dtype)); }

  // Replaces it by a copy at `workspace` of the layout `padded`, and moves `workspace` past the copy.
  std::string pad(char*& workspace, const MatrixView& padded, const Problem& problem, DType dtype, void* stream) {
    std::string error = pad_copy(workspace, data, view, padded, problem.batch, dtype, stream);
    data = workspace;
    view = padded;
    workspace += padded_bytes(view, problem.batch, size_bytes(dtype));
    return error;
  }
};

}  // namespace jaxgemm
