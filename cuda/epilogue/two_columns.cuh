// Two neighbouring columns of a row of out, in few instructions: at the end of a short kernel each waits for the one
// before it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "epilogue/epilogue.cuh"
#include "ptx/convert.cuh"

namespace jaxgemm {

class TwoColumns {
 public:
  // The first column is even.
  __device__ TwoColumns(const Epilogue& epilogue, int64_t batch, int64_t row, int64_t col, int64_t N)
      : epilogue_(epilogue),
        index_(batch * epilogue.batch_stride + row * epilogue.ld + col),
        batch_(batch),
        col_(col),
        N_(N),
        kind_(!epilogue.plain() || !epilogue.quads_aligned || col + 2 > N || epilogue.out_dtype == DType::kF32 ? kAny
              : epilogue.out_dtype == DType::kF16 ? kHalf
                                                  : kBfloat) {}

  __device__ void store(const float (&sums)[2]) const {
    if (kind_ == kAny) {
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {
        if (col_ + i < N_) epilogue_.put(index_ + i, epilogue_.finish(i == 0 ? sums[0] : sums[1], batch_, col_ + i));
      }
      return;
    }
    static_cast<uint32_t*>(epilogue_.out)[index_ / 2] =
        kind_ == kHalf ? ptx::pack<__half>(sums[0], sums[1]) : ptx::pack<__nv_bfloat16>(sums[0], sums[1]);
  }

 private:
  enum : int { kAny, kHalf, kBfloat };  // the latter: rounded to 16 bits, and stored as one word
  const Epilogue& epilogue_;
  const int64_t index_, batch_, col_, N_;
  const int kind_;
};

}  // namespace jaxgemm
