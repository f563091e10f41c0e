// One operand in global memory, as a kernel sees it.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace jaxgemm {

// Offsets are 64-bit: a matrix may have more than 2^31 elements.
template <class T, bool kTransposed>
struct GlobalMatrix {
  const T* data;
  int64_t ld, batch_stride;

  GlobalMatrix(const void* pointer, const MatrixView& view)
      : data(static_cast<const T*>(pointer)), ld(view.ld), batch_stride(view.batch_stride) {}

  __device__ const T* at(int64_t batch, int64_t row, int64_t col) const {
    return data + batch * batch_stride + (kTransposed ? col * ld + row : row * ld + col);
  }
};

}  // namespace jaxgemm
