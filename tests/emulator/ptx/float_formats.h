// The narrow floating-point formats, bit by bit, as the GPU's conversion instructions give them.
// PTX ISA, "Alternate Floating-Point Data Formats" and "Data Movement and Conversion Instructions: cvt".
#pragma once

#include <bit>
#include <cstdint>

namespace emu {

inline constexpr uint32_t kFloatInfinity = 0x7f800000, kFloatMagnitude = 0x7fffffff;
inline constexpr uint16_t kCanonicalNan = 0x7fff;  // what cvt makes of any NaN, in float16 and in bfloat16

constexpr uint16_t float_to_f16(float x) {
  constexpr uint32_t kTooLarge = 0x477ff000;        // 65520: from here on infinity is nearest
  constexpr uint32_t kSmallestNormal = 0x38800000;  // 2^-14
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & kFloatMagnitude;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (magnitude > kFloatInfinity) return kCanonicalNan;
  if (magnitude >= kTooLarge) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < kSmallestNormal) {
    // Neighbours of 0.5 are 2^-24 apart, as subnormals of float16 are: the addition rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t rebiased = magnitude - ((127 - 15) << 23);
  return static_cast<uint16_t>(sign | (rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13);
}

constexpr float f16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7fffu;
  // Read as a float32 the fields stand for a value 2^112 too small, subnormals included; only the largest exponent
  // means something else.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t bits = magnitude >= 0x7c00 ? kFloatInfinity | magnitude << 13 : std::bit_cast<uint32_t>(scaled);
  return std::bit_cast<float>(sign | bits);
}

constexpr uint16_t float_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & kFloatMagnitude) > kFloatInfinity) return kCanonicalNan;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

constexpr float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

constexpr float e5m2_to_float(uint8_t bits) { return f16_to_float(static_cast<uint16_t>(bits << 8)); }

// No infinities: of the largest exponent only the largest mantissa is a NaN.
constexpr float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24, magnitude = bits & 0x7fu;
  // As in f16_to_float(), with 2^120.
  const float scaled = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  return std::bit_cast<float>(sign | (magnitude == 0x7f ? kFloatMagnitude : std::bit_cast<uint32_t>(scaled)));
}

inline constexpr uint32_t kTf32Mask = 0xffffe000;

// cvt.rna.tf32.f32. What SASS makes of it (sm_80 to sm_90) adds half a unit to finite numbers and masks: a NaN whose
// payload lies in the low bits only becomes an infinity.
constexpr uint32_t float_to_tf32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool finite = (bits & kFloatMagnitude) < kFloatInfinity;
  return (finite ? bits + 0x1000 : bits) & kTf32Mask;
}

// Rounding to odd: towards zero, with the last bit set where anything was lost. A number so rounded rounds to a format
// of two bits less, or fewer, as the exact one does. Boldo and Melquiond, "Emulation of FMA and Correctly Rounded Sums:
// Proved Algorithms Using Rounding to Odd", IEEE Transactions on Computers 57(4), 2008.
inline double add_to_odd(double a, double b) {
  const double sum = a + b, from_b = sum - a, lost = (a - (sum - from_b)) + (b - from_b);  // Knuth's TwoSum
  if (lost == 0 || lost != lost || (std::bit_cast<uint64_t>(sum) & 1) != 0) return sum;
  const bool away = (lost < 0) == (sum < 0);  // whether the exact sum is farther from zero
  return std::bit_cast<double>(std::bit_cast<uint64_t>(sum) + (away ? 1 : -1));
}
inline float to_float_odd(double x) {
  const float near = static_cast<float>(x);
  const double wide = near;
  if (wide == x || x != x || (std::bit_cast<uint32_t>(near) & 1) != 0) return near;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(near) + ((x < 0 ? -x : x) > (wide < 0 ? -wide : wide) ? 1 : -1));
}

// What mma takes of a register that holds a tf32.
constexpr float tf32_to_float(uint32_t bits) { return std::bit_cast<float>(bits & kTf32Mask); }

}  // namespace emu
