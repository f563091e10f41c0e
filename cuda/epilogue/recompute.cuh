// What becomes of sums before alpha, bias and activation: nothing, or, where a kernel's own way of multiplying is not
// as good as float32's, another try.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace jaxgemm {

struct Keep {
  Keep() = default;
  explicit Keep(const GemmArgs&) {}

  template <class Accumulator>
  __device__ void operator()(Accumulator (&)[4], int64_t, int64_t, int64_t, int64_t) const {}
  template <class Accumulator, int kSums>
  __device__ bool wanted(const Accumulator (&)[kSums]) const {
    return false;
  }
};

// Computes sums that are not finite again, in float32, and all sums of few products. Costs a pass over K for each.
struct Recompute {
  struct Operand {
    const float* data;
    int64_t batch_stride, mn_stride, k_stride;
  };
  Operand lhs, rhs;
  int64_t K;

  explicit Recompute(const GemmArgs& args)
      : lhs(operand(args.lhs, args.problem.lhs, args.problem.lhs.transposed)),
        rhs(operand(args.rhs, args.problem.rhs, !args.problem.rhs.transposed)),
        K(args.problem.K) {}

  // Four neighbouring columns of out, of which those before N exist.
  __device__ void operator()(float (&sum)[4], int64_t batch, int64_t row, int64_t col, int64_t N) const {
    // x - x is NaN if x is not finite. One sum of all four, as this is asked for every element of out.
    const float rest = (sum[0] - sum[0]) + (sum[1] - sum[1]) + (sum[2] - sum[2]) + (sum[3] - sum[3]);
    const bool few = K <= kFewProducts;
    if (rest == 0.0f && !few) return;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const bool good = sum[0] - sum[0] == 0.0f && !few;
      const float value = good || col + i >= N ? sum[0] : dot(batch, row, col + i);
      // The registers rotate, so that they need no index.
      sum[0] = sum[1];
      sum[1] = sum[2];
      sum[2] = sum[3];
      sum[3] = value;
    }
  }

  // The same of sums that lie anywhere: whether any of them needs it, and one of them.
  template <int kSums>
  __device__ bool wanted(const float (&sums)[kSums]) const {
    float rest = 0.0f;
#pragma unroll
    for (float sum : sums) rest += sum - sum;
    return rest != 0.0f || K <= kFewProducts;  // NaN is not 0
  }
  __device__ float fixed(float sum, int64_t batch, int64_t row, int64_t col) const {
    return sum - sum == 0.0f && K > kFewProducts ? sum : dot(batch, row, col);
  }

 private:
  // lhs[row] * rhs[col] by multiply-adds in the order of K.
  __device__ float dot(int64_t batch, int64_t row, int64_t col) const {
    const float* g_lhs = lhs.data + batch * lhs.batch_stride + row * lhs.mn_stride;
    const float* g_rhs = rhs.data + batch * rhs.batch_stride + col * rhs.mn_stride;
    float sum = 0.0f;
#pragma unroll 1
    for (int64_t k = 0; k < K; ++k) sum = fmaf(g_lhs[k * lhs.k_stride], g_rhs[k * rhs.k_stride], sum);
    return sum;
  }

  static Operand operand(const void* data, const MatrixView& view, bool mn_contiguous) {
    return {static_cast<const float*>(data), view.batch_stride, mn_contiguous ? 1 : view.ld,
            mn_contiguous ? view.ld : 1};
  }
};

}  // namespace jaxgemm
