// Small numbers in the 8-bit floating-point formats.
#pragma once

#include <cstdint>

#include "ptx/mma_types.cuh"

namespace jaxgemm::probes {

template <class T>
struct Fp8;
template <>
struct Fp8<ptx::E4m3> {
  static constexpr int kMantissaBits = 3, kBias = 7, kLargest = 0x7e;
};
template <>
struct Fp8<ptx::E5m2> {
  static constexpr int kMantissaBits = 2, kBias = 15, kLargest = 0x7b;
};

// The bits of -8 to 8, which both formats have exactly.
template <class T>
__device__ uint32_t fp8_bits(int x) {
  const int magnitude = x < 0 ? -x : x, sign = x < 0 ? 0x80 : 0;
  if (magnitude == 0) return 0;
  const int exponent = magnitude < 2 ? 0 : magnitude < 4 ? 1 : magnitude < 8 ? 2 : 3;
  constexpr int kMantissaBits = Fp8<T>::kMantissaBits;
  const int mantissa = (magnitude << kMantissaBits >> exponent) & ((1 << kMantissaBits) - 1);
  return static_cast<uint32_t>(sign | (exponent + Fp8<T>::kBias) << kMantissaBits | mantissa);
}

}  // namespace jaxgemm::probes
