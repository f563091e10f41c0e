// Conversions from float32 to what mma takes as operands.
// PTX ISA, "Data Movement and Conversion Instructions: cvt"; "Alternate Floating-Point Data Formats" for tf32.
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

}  // namespace jaxgemm::ptx
