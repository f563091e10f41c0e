// What the two implementations of mma.cuh share: the element types that have no type of their own elsewhere.
#pragma once

#include <cstdint>

namespace jaxgemm::ptx {

// The 8-bit floating-point formats, as bits: what arrays of float8_e4m3fn and float8_e5m2 hold. <cuda_fp8.h> has types
// too, with conversions that nothing here needs. PTX ISA, "Alternate Floating-Point Data Formats".
struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

template <class T>
inline constexpr bool kIsFp8 = false;
template <>
inline constexpr bool kIsFp8<E4m3> = true;
template <>
inline constexpr bool kIsFp8<E5m2> = true;

}  // namespace jaxgemm::ptx
