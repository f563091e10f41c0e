// Emulates cuda/ptx/convert.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "ptx/float_formats.h"

namespace jaxgemm::ptx {

inline uint32_t to_tf32(float x) { return emu::float_to_tf32(x); }

template <class T>
inline uint32_t pack(float low, float high) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  if constexpr (std::is_same_v<T, __half>) {
    return emu::float_to_f16(low) | static_cast<uint32_t>(emu::float_to_f16(high)) << 16;
  } else {
    return emu::float_to_bf16(low) | static_cast<uint32_t>(emu::float_to_bf16(high)) << 16;
  }
}

inline float widen(uint32_t bits, bool is_half) {
  const auto low = static_cast<uint16_t>(bits);
  return is_half ? emu::f16_to_float(low) : emu::bf16_to_float(low);
}

template <uint32_t kMask>
inline uint32_t masked_or(uint32_t x, uint32_t base) {
  return (x & kMask) | base;
}

template <class T>
inline uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  constexpr bool kHalf = std::is_same_v<T, __half>;
  const auto one = [](uint32_t x, uint32_t y, uint32_t z) -> uint32_t {
    const auto wide = [](uint32_t bits) -> double {
      const auto half = static_cast<uint16_t>(bits);
      return static_cast<double>(kHalf ? emu::f16_to_float(half) : emu::bf16_to_float(half));
    };
    // The product is exact. What of the sum does not fit a double is kept by an odd last bit, as it is where that does
    // not fit a float32: then the last rounding is the only one.
    const double product = wide(x) * wide(y), exact = emu::add_to_odd(product, wide(z));
    const float sum = emu::to_float_odd(exact);
    return kHalf ? emu::float_to_f16(sum) : emu::float_to_bf16(sum);
  };
  return one(a & 0xffff, b & 0xffff, c & 0xffff) | one(a >> 16, b >> 16, c >> 16) << 16;
}

template <class T>
inline uint32_t sub2(uint32_t a, uint32_t b) {
  static_assert(std::is_same_v<T, __half>);
  constexpr uint32_t kOnes = 0x3c003c00, kSigns = 0x80008000;
  return fma2<T>(a, kOnes, b ^ kSigns);
}
template <class T>
inline uint32_t mul2(uint32_t a, uint32_t b) {
  constexpr uint32_t kMinusZeros = 0x80008000;
  return fma2<T>(a, b, kMinusZeros);
}

}  // namespace jaxgemm::ptx
