// out = activation(alpha * accumulator + bias), evaluated in float32 and rounded once to the dtype of out.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "gemm.h"

namespace jaxgemm {

// x / (1 + exp(-u)) without the branches of an IEEE division: with exp(-|u|) the divisor is between 1 and 2, where
// __fdividef() is off by 2 units in the last place at most (CUDA C++ programming guide, "Mathematical Functions").
__device__ inline float times_sigmoid(float x, float u) {
  const float e = expf(-fabsf(u));
  return __fdividef(u < 0.0f ? x * e : x, 1.0f + e);
}

// gelu_tanh: 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), Hendrycks and Gimpel, "Gaussian Error Linear
// Units", arXiv:1606.08415, section 2. That is x / (1 + exp(-2u)): silu(x) = x / (1 + exp(-x)) of another argument.
__device__ inline float activate(Activation activation, float x) {
  if (activation == Activation::kNone) return x;
  if (activation == Activation::kRelu) return x < 0.0f ? 0.0f : x;  // keeps NaN, which fmaxf would drop
  if (activation == Activation::kGeluErf) return 0.5f * x * erfcf(-x * 0.7071067811865476f);
  constexpr float k2Sqrt2OverPi = 1.5957691216057308f;
  const float sigmoid_of = activation == Activation::kSilu ? x : k2Sqrt2OverPi * (x + 0.044715f * x * x * x);
  return times_sigmoid(x, sigmoid_of);
}

// Four neighbours at a multiple of their size, rounded and stored at once.
__device__ inline void round4(int32_t* g_out, const int32_t (&value)[4]) {
  *reinterpret_cast<int4*>(g_out) = make_int4(value[0], value[1], value[2], value[3]);
}
__device__ inline void round4(float* g_out, const float (&value)[4]) {
  *reinterpret_cast<float4*>(g_out) = make_float4(value[0], value[1], value[2], value[3]);
}
__device__ inline void round4(__half* g_out, const float (&value)[4]) {
  __half2 pair[2] = {__floats2half2_rn(value[0], value[1]), __floats2half2_rn(value[2], value[3])};
  *reinterpret_cast<uint2*>(g_out) = *reinterpret_cast<const uint2*>(pair);
}
__device__ inline void round4(__nv_bfloat16* g_out, const float (&value)[4]) {
  __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(value[0], value[1]), __floats2bfloat162_rn(value[2], value[3])};
  *reinterpret_cast<uint2*>(g_out) = *reinterpret_cast<const uint2*>(pair);
}

// Two of them.
__device__ inline void round2(int32_t* g_out, const int32_t (&value)[4]) {
  *reinterpret_cast<int2*>(g_out) = make_int2(value[0], value[1]);
}
__device__ inline void round2(float* g_out, const float (&value)[4]) {
  *reinterpret_cast<float2*>(g_out) = make_float2(value[0], value[1]);
}
__device__ inline void round2(__half* g_out, const float (&value)[4]) {
  *reinterpret_cast<__half2*>(g_out) = __floats2half2_rn(value[0], value[1]);
}
__device__ inline void round2(__nv_bfloat16* g_out, const float (&value)[4]) {
  *reinterpret_cast<__nv_bfloat162*>(g_out) = __floats2bfloat162_rn(value[0], value[1]);
}

// One, rounded.
__device__ inline void round1(int32_t* g_out, int32_t value) { *g_out = value; }
__device__ inline void round1(float* g_out, float value) { *g_out = value; }
__device__ inline void round1(__half* g_out, float value) { *g_out = __float2half_rn(value); }
__device__ inline void round1(__nv_bfloat16* g_out, float value) { *g_out = __float2bfloat16_rn(value); }

// Writes accumulators of one matrix of out. Callers mask rows >= M and columns >= N themselves.
struct Epilogue {
  void* out;           // (batch, M, N), row-major with leading dimension ld
  const float* alpha;  // one number, or nullptr
  const void* bias;    // (N), (batch, N) or nullptr
  int64_t ld, batch_stride, bias_batch_stride;
  DType out_dtype, bias_dtype;
  Activation activation;
  unsigned first_phase;  // of out[0], see phase()
  bool quads_aligned;    // the phase of every column that is a multiple of 4 is 0
  bool vectors_aligned;  // every eighth column of 16-bit elements lies at a multiple of 16 bytes, and N is such a one

  explicit Epilogue(const GemmArgs& args)
      : out(args.out),
        alpha(args.alpha),
        bias(args.bias),
        ld(args.problem.out.ld),
        batch_stride(args.problem.out.batch_stride),
        bias_batch_stride(args.bias_batch_stride),
        out_dtype(args.problem.out_dtype),
        bias_dtype(args.bias_dtype),
        activation(args.problem.activation),
        first_phase(static_cast<unsigned>(reinterpret_cast<uintptr_t>(out) /
                                          static_cast<uintptr_t>(size_bytes(out_dtype)) % 4)),
        quads_aligned(ld % 4 == 0 && batch_stride % 4 == 0 && first_phase == 0),
        vectors_aligned(args.problem.N % 8 == 0 && ld % 8 == 0 && batch_stride % 8 == 0 &&
                        reinterpret_cast<uintptr_t>(out) % 16 == 0) {}

  // How many elements out(batch, row, col) lies past an address where four elements can be stored at once.
  __device__ unsigned phase(int64_t batch, int64_t row, int64_t col) const {
    return (first_phase + static_cast<unsigned>(batch * batch_stride + row * ld + col)) % 4;
  }

  // Whether accumulators are only rounded.
  __host__ __device__ bool plain() const {
    return alpha == nullptr && bias == nullptr && activation == Activation::kNone;
  }

  // 1, which changes nothing, where there is no alpha: a branch for each case takes more registers.
  __device__ float factor() const { return alpha ? *alpha : 1.0f; }

  // Of a column before N, where there is a bias.
  __device__ float bias_of(int64_t batch, int64_t col) const {
    const int64_t index = batch * bias_batch_stride + col;
    if (bias_dtype == DType::kF32) return static_cast<const float*>(bias)[index];
    if (bias_dtype == DType::kF16) return __half2float(static_cast<const __half*>(bias)[index]);
    return __bfloat162float(static_cast<const __nv_bfloat16*>(bias)[index]);
  }

  __device__ float finish(float accumulator, int64_t batch, int64_t col) const {
    const float scaled = factor() * accumulator;
    return activate(activation, bias ? scaled + bias_of(batch, col) : scaled);
  }

  // The same for four neighbouring columns, of which those before N exist. The code of the activations, which is long,
  // is there once: the values take turns in one register.
  __device__ void finish4(float (&x)[4], int64_t batch, int64_t col, int64_t N) const {
    if (bias) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (col + i < N) x[i] = factor() * x[i] + bias_of(batch, col + i);
      }
    } else if (alpha) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] *= *alpha;
    }
    if (activation == Activation::kNone) return;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const float first = activate(activation, x[0]);
      x[0] = x[1];
      x[1] = x[2];
      x[2] = x[3];
      x[3] = first;
    }
  }

  __device__ void store(int64_t batch, int64_t row, int64_t col, float accumulator) const {
    put(batch * batch_stride + row * ld + col, finish(accumulator, batch, col));
  }
  __device__ void store(int64_t batch, int64_t row, int64_t col, int32_t accumulator) const {
    put(batch * batch_stride + row * ld + col, accumulator);
  }

  // Four neighbouring columns: one vector store where that is possible, as quads_aligned says for a column that is a
  // multiple of 4, or the caller by `aligned`.
  template <class Accumulator>
  __device__ void store4(int64_t batch, int64_t row, int64_t col, int64_t N,
                         const Accumulator (&accumulator)[4]) const {
    store4(batch, row, col, N, accumulator, quads_aligned);
  }
  template <class Accumulator>
  __device__ void store4(int64_t batch, int64_t row, int64_t col, int64_t N, const Accumulator (&accumulator)[4],
                         bool aligned) const {
    const int64_t index = batch * batch_stride + row * ld + col;
    Accumulator value[4] = {accumulator[0], accumulator[1], accumulator[2], accumulator[3]};
    if constexpr (std::is_same_v<Accumulator, float>) finish4(value, batch, col, N);
    if (aligned && col + 4 <= N) {
      put4(index, value);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (col + i < N) put(index + i, value[i]);
    }
  }

  // As it is, at an index.
  __device__ void put(int64_t index, int32_t value) const { round1(static_cast<int32_t*>(out) + index, value); }

  __device__ void put(int64_t index, float value) const {
    if (out_dtype == DType::kF32) {
      round1(static_cast<float*>(out) + index, value);
    } else if (out_dtype == DType::kF16) {
      round1(static_cast<__half*>(out) + index, value);
    } else {
      round1(static_cast<__nv_bfloat16*>(out) + index, value);
    }
  }

 private:
  template <class Accumulator>
  __device__ void put4(int64_t index, const Accumulator (&value)[4]) const {
    if constexpr (std::is_same_v<Accumulator, int32_t>) {
      round4(static_cast<int32_t*>(out) + index, value);
    } else if (out_dtype == DType::kF32) {
      round4(static_cast<float*>(out) + index, value);
    } else if (out_dtype == DType::kF16) {
      round4(static_cast<__half*>(out) + index, value);
    } else {
      round4(static_cast<__nv_bfloat16*>(out) + index, value);
    }
  }
};

}  // namespace jaxgemm
