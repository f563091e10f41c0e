// One step of mma.sync along K, for each way of multiplying that the mma rungs have: which elements the operands have,
// how long the step is, and what becomes of the registers before they are multiplied.
#pragma once

#include <cstdint>

#include "fragment.cuh"
#include "gemm.h"
#include "ptx/mma.cuh"

namespace jaxgemm {

// An Op is a struct with
//   Element, Accumulator   types; kElems elements to a 32-bit register
//   kK                     elements of K that a step takes
//   kRecomputes            whether some sums are to be computed again in float32 (epilogue/recompute.cuh)
//   kSumsApart             whether each k-tile has sums of its own: see accumulate()
//   Columns<kCols>         b of kCols neighbouring fragments, made of registers that hold the elements as in memory
//   multiply(d, a, b)      d[j] += a * b[j] for one such a and all columns
template <class Element_, class Accumulator_>
struct MmaOp {
  using Element = Element_;
  using Accumulator = Accumulator_;
  static constexpr int kElems = 4 / sizeof(Element);
  static constexpr int kK = fragment::kK<kElems>;
  static constexpr bool kRecomputes = false, kSumsApart = false;

  template <int kCols>
  struct Columns {
    const uint32_t (&r)[kCols][2];
    __device__ explicit Columns(const uint32_t (&r)[kCols][2]) : r(r) {}
  };
};

// d[i][j] += a[i] * b[j].
template <class Op, int kRows, int kCols>
__device__ void multiply(typename Op::Accumulator (&d)[kRows][kCols][4], const uint32_t (&a)[kRows][4],
                         const uint32_t (&b)[kCols][2]) {
  const typename Op::template Columns<kCols> columns(b);
#pragma unroll
  for (int i = 0; i < kRows; ++i) Op::multiply(d[i], a[i], columns);
}

// Calls multiply_k_tile(d), which adds the products of a k-tile to d: to the sums of all k-tiles, or, for an Op with
// kSumsApart, to new ones, which then are added to those. Tensor cores truncate sums: always towards zero, by up to a
// unit in the last place, so that the errors of a long sum add up. Sums of a k-tile are small, and the others are
// rounded to nearest (Ootomo and Yokota, see MmaTf32x3).
template <class Op, int kRows, int kCols, class MultiplyKTile>
__device__ void accumulate(typename Op::Accumulator (&sums)[kRows][kCols][4], MultiplyKTile&& multiply_k_tile) {
  if constexpr (Op::kSumsApart) {
    typename Op::Accumulator k_tile_sums[kRows][kCols][4] = {};
    multiply_k_tile(k_tile_sums);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
#pragma unroll
        for (int r = 0; r < 4; ++r) sums[i][j][r] += k_tile_sums[i][j][r];
      }
    }
  } else {
    multiply_k_tile(sums);
  }
}

// float16 or bfloat16.
template <class T>
struct Mma16 : MmaOp<T, float> {
  template <int kCols, class Columns>
  __device__ static void multiply(float (&d)[kCols][4], const uint32_t (&a)[4], const Columns& b) {
#pragma unroll
    for (int j = 0; j < kCols; ++j) ptx::mma_m16n8k16<T>(d[j], a, b.r[j]);
  }
};

// int8.
struct MmaS8 : MmaOp<int8_t, int32_t> {
  template <int kCols, class Columns>
  __device__ static void multiply(int32_t (&d)[kCols][4], const uint32_t (&a)[4], const Columns& b) {
#pragma unroll
    for (int j = 0; j < kCols; ++j) ptx::mma_m16n8k32_s8(d[j], a, b.r[j]);
  }
};

// float32 rounded to TF32. mma takes no notice of the bits that TF32 does not have. What is added before makes numbers
// that TF32 holds no different and shifts the others by 0.35 to 0.71 units of TF32's last place: they are rounded to
// one of their two neighbours, on average without a bias, by one multiply-add, where cvt.rna takes four instructions.
struct MmaTf32 : MmaOp<float, float> {
  __device__ static uint32_t round(uint32_t r) {
    constexpr float kShift = 3.4526698e-4f;  // 2^-11.5
    const float x = __uint_as_float(r);
    return __float_as_uint(fmaf(x, kShift, x));
  }

  template <int kCols>
  struct Columns {
    uint32_t r[kCols][2];
    __device__ explicit Columns(const uint32_t (&exact)[kCols][2]) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        r[j][0] = round(exact[j][0]);
        r[j][1] = round(exact[j][1]);
      }
    }
  };

  template <int kCols>
  __device__ static void multiply(float (&d)[kCols][4], const uint32_t (&a)[4], const Columns<kCols>& b) {
    const uint32_t rounded[4] = {round(a[0]), round(a[1]), round(a[2]), round(a[3])};
#pragma unroll
    for (int j = 0; j < kCols; ++j) ptx::mma_m16n8k8_tf32(d[j], rounded, b.r[j]);
  }
};

// float32 as the sum of two TF32 numbers, big + small, of whose four products the smallest is left out ("3xTF32":
// Markidis et al., "NVIDIA Tensor Core Programmability, Performance & Precision", 2018, for float16; Ootomo and Yokota,
// "Recovering single precision accuracy from Tensor Cores", 2022). Of 1 + 2^-10 - 2^-23, the worst of all
// operands, 6 * 2^-24 are lost, and of its square 28 * 2^-24: no more than the rounding errors that sums of a few dozen
// products may have. Sums of fewer, and those that are not finite (infinities do not survive the split: inf - inf is
// NaN), are computed again in float32 (Recompute, epilogue/recompute.cuh).
struct MmaTf32x3 : MmaOp<float, float> {
  static constexpr bool kRecomputes = true, kSumsApart = true;

  // mma ignores the last 13 bits of both, which truncates them. A NaN may become an infinity by that, but then small is
  // NaN.
  __device__ static void split(uint32_t& big, uint32_t& small, uint32_t r) {
    big = r;
    small = __float_as_uint(__uint_as_float(r) - __uint_as_float(big & 0xFFFFE000u));
  }

  template <int kCols>
  struct Columns {
    uint32_t big[kCols][2], small[kCols][2];
    __device__ explicit Columns(const uint32_t (&r)[kCols][2]) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        split(big[j][0], small[j][0], r[j][0]);
        split(big[j][1], small[j][1], r[j][1]);
      }
    }
  };

  // Small products first, each kind for all columns, so that no instruction waits for the one before it.
  template <int kCols>
  __device__ static void multiply(float (&d)[kCols][4], const uint32_t (&a)[4], const Columns<kCols>& b) {
    uint32_t big[4], small[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) split(big[i], small[i], a[i]);
#pragma unroll
    for (int j = 0; j < kCols; ++j) ptx::mma_m16n8k8_tf32(d[j], small, b.big[j]);
#pragma unroll
    for (int j = 0; j < kCols; ++j) ptx::mma_m16n8k8_tf32(d[j], big, b.small[j]);
#pragma unroll
    for (int j = 0; j < kCols; ++j) ptx::mma_m16n8k8_tf32(d[j], big, b.big[j]);
  }
};

}  // namespace jaxgemm
