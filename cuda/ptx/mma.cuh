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
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

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

}  // namespace jaxgemm::ptx
