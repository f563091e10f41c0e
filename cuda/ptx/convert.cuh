// Conversions to what mma takes as operands.
// PTX ISA, "Data Movement and Conversion Instructions: cvt"; "Alternate Floating-Point Data Formats" for tf32; "Half
// Precision Floating-Point Instructions: fma".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace jaxgemm::ptx {

// Rounds to the nearest tf32, ties away from zero: the only nearest rounding that cvt has for tf32 before sm_90.
__device__ inline uint32_t to_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// Rounds both to T (float16 or bfloat16), to the nearest with ties to even, and packs them into one register.
template <class T>
__device__ inline uint32_t pack(float low, float high) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  uint32_t bits;
  if constexpr (std::is_same_v<T, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  }
  return bits;
}

// The number in the low half of a register, a float16 (is_half) or a bfloat16; the upper half does not matter. By a
// predicate: of a choice in C++ the compiler makes three instructions, or branches with what follows in both.
__device__ inline float widen(uint32_t bits, bool is_half) {
  float wide;
  asm("{\n\t"
      ".reg .pred half;\n\t"
      ".reg .b16 low, high;\n\t"
      "setp.ne.u32 half, %2, 0;\n\t"
      "mov.b32 {low, high}, %1;\n\t"
      "shl.b32 %0, %1, 16;\n\t"
      "@half cvt.f32.f16 %0, low;\n\t"
      "}"
      : "=f"(wide)
      : "r"(bits), "r"(static_cast<uint32_t>(is_half)));
  return wide;
}

// (x & kMask) | base, in one instruction if base is in a register: the compiler makes two of two constants. PTX ISA,
// "lop3", whose table 0xea is (a & b) | c.
template <uint32_t kMask>
__device__ inline uint32_t masked_or(uint32_t x, uint32_t base) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(x), "n"(kMask), "r"(base));
  return bits;
}

// a * b + c, a - b and a * b of both halves of a register, each rounded once to T, to the nearest with ties to even.
// The last one has an instruction for bfloat16 from sm_90 on.
template <class T>
__device__ inline uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  uint32_t bits;
  if constexpr (std::is_same_v<T, __half>) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(a), "r"(b), "r"(c));
  }
  return bits;
}

template <class T>
__device__ inline uint32_t sub2(uint32_t a, uint32_t b) {
  static_assert(std::is_same_v<T, __half>);
  uint32_t bits;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(bits) : "r"(a), "r"(b));
  return bits;
}
template <class T>
__device__ inline uint32_t mul2(uint32_t a, uint32_t b) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  uint32_t bits;
  if constexpr (std::is_same_v<T, __half>) {
    asm("mul.f16x2 %0, %1, %2;" : "=r"(bits) : "r"(a), "r"(b));
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mul.bf16x2 %0, %1, %2;" : "=r"(bits) : "r"(a), "r"(b));
#else
    bits = fma2<T>(a, b, 0x80008000);  // a * b + -0
#endif
  }
  return bits;
}

}  // namespace jaxgemm::ptx
