// Where runs of an operand begin: at vectors of 16 bytes, which one instruction of a thread moves and which TMA asks
// for (PTX ISA, "Tensors"), and at lines of the L2 cache.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace jaxgemm {

inline constexpr int kVectorBytes = 16, kL2LineBytes = 128;

inline bool at_vector(const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0; }

// Whether all runs of an operand begin at multiples of 16 bytes where its first one does.
inline bool begins_at_vectors(const MatrixView& view, int64_t element_bytes) {
  return view.ld * element_bytes % kVectorBytes == 0 && view.batch_stride * element_bytes % kVectorBytes == 0;
}

// Whether, there, whole vectors lie inside of it or outside of it.
inline bool made_of_vectors(const MatrixView& view, int64_t element_bytes) {
  return (view.transposed ? view.rows : view.cols) * element_bytes % kVectorBytes == 0 &&
         begins_at_vectors(view, element_bytes);
}

// Whether every run of every matrix of an operand at `data` does.
inline bool runs_aligned(const void* data, const MatrixView& view, int64_t element_bytes) {
  return at_vector(data) && begins_at_vectors(view, element_bytes);
}

}  // namespace jaxgemm
