// Emulates cuda/ptx/mma.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "core/emu.h"
#include "ptx/mma_types.cuh"

namespace emu {
EMU_NOINLINE void mma_f16(float* d, const uint32_t* a, const uint32_t* b);
EMU_NOINLINE void mma_bf16(float* d, const uint32_t* a, const uint32_t* b);
EMU_NOINLINE void mma_tf32(float* d, const uint32_t* a, const uint32_t* b);
EMU_NOINLINE void mma_s8(int32_t* d, const uint32_t* a, const uint32_t* b);
EMU_NOINLINE void mma_f16_f16(uint32_t* d, const uint32_t* a, const uint32_t* b);
EMU_NOINLINE void mma_fp8(bool e5m2_a, bool e5m2_b, float* d, const uint32_t* a, const uint32_t* b);
}  // namespace emu

namespace jaxgemm::ptx {

template <class T>
EMU_INLINE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  if constexpr (std::is_same_v<T, __half>) {
    emu::mma_f16(d, a, b);
  } else {
    emu::mma_bf16(d, a, b);
  }
}

EMU_INLINE void mma_m16n8k16_f16(uint32_t (&d)[2], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emu::mma_f16_f16(d, a, b);
}

EMU_INLINE void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emu::mma_tf32(d, a, b);
}

EMU_INLINE void mma_m16n8k32_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emu::mma_s8(d, a, b);
}

template <class TA, class TB>
EMU_INLINE void mma_m16n8k32_fp8(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(kIsFp8<TA> && kIsFp8<TB>);
  emu::mma_fp8(std::is_same_v<TA, E5m2>, std::is_same_v<TB, E5m2>, d, a, b);
}

}  // namespace jaxgemm::ptx
