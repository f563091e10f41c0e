// Stand-in for CUDA's header: what kernels use of it.
#pragma once

#include <cstdint>

#include "ptx/float_formats.h"

struct __half {
  uint16_t bits;
};

struct alignas(4) __half2 {
  __half x, y;
};

inline __half __float2half_rn(float x) { return {emu::float_to_f16(x)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline float __half2float(__half x) { return emu::f16_to_float(x.bits); }
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half x) { return x.bits; }
