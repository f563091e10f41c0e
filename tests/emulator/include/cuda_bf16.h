// Stand-in for CUDA's header: what kernels use of it.
#pragma once

#include <cstdint>

#include "ptx/float_formats.h"

struct __nv_bfloat16 {
  uint16_t bits;
};

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {emu::float_to_bf16(x)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline float __bfloat162float(__nv_bfloat16 x) { return emu::bf16_to_float(x.bits); }
inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) { return {bits}; }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
