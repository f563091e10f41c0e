// mma.sync: d += a * b by one warp, d of 16 x 8 elements spread over its lanes.
// PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions": "mma", and for the fragments "Matrix Fragments for
// mma.m16n8k16 with floating point type", "Matrix Fragments for mma.m16n8k8", "Matrix Fragments for mma.m16n8k32".
//
// With g = lane / 4 and t = lane % 4, each register of a and b holds e = 32 / bits neighbours along K, the first of
// them in the lowest bits. They start at e * t within the half of K that belongs to the register:
//   a[0] row g,     first half of K     a[2] row g,     second half
//   a[1] row g + 8, first half of K     a[3] row g + 8, second half
//   b[0] column g,  first half of K     b[1] column g,  second half
//   d[0], d[1] row g, columns 2 * t and 2 * t + 1       d[2], d[3] row g + 8, the same columns
// float16 accumulators lie in pairs: d[0] has the two of row g, the first in the low bits, and d[1] those of row g + 8.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "ptx/mma_types.cuh"

namespace jaxgemm::ptx {

// float16 or bfloat16 (T), float32 accumulators.
template <class T>
__device__ inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// float16 with float16 accumulators.
__device__ inline void mma_m16n8k16_f16(uint32_t (&d)[2], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
      : "+r"(d[0]), "+r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// tf32, one element to a register, float32 accumulators. The low 13 bits of the operands do not take part: operands
// that are to be rounded and not truncated go through to_tf32() (convert.cuh).
__device__ inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// int8, int32 accumulators that wrap around.
__device__ inline void mma_m16n8k32_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// asm needs string literals: hence a macro, for this header only.
#define JAXGEMM_MMA_FP8(a_type, b_type)                                      \
  asm("mma.sync.aligned.m16n8k32.row.col.f32." a_type "." b_type             \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

// 8-bit floating point (TA and TB: E4m3 or E5m2), float32 accumulators. From sm_89 on; sm_90 has such tensor cores for
// wgmma only, and ptxas (13.0) makes conversions and two float16 multiplications of it there.
template <class TA, class TB>
__device__ inline void mma_m16n8k32_fp8(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(kIsFp8<TA> && kIsFp8<TB>);
  constexpr bool kE4m3A = std::is_same_v<TA, E4m3>, kE4m3B = std::is_same_v<TB, E4m3>;
  if constexpr (kE4m3A && kE4m3B) JAXGEMM_MMA_FP8("e4m3", "e4m3");
  if constexpr (kE4m3A && !kE4m3B) JAXGEMM_MMA_FP8("e4m3", "e5m2");
  if constexpr (!kE4m3A && kE4m3B) JAXGEMM_MMA_FP8("e5m2", "e4m3");
  if constexpr (!kE4m3A && !kE4m3B) JAXGEMM_MMA_FP8("e5m2", "e5m2");
}

#undef JAXGEMM_MMA_FP8

}  // namespace jaxgemm::ptx
