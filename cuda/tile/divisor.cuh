// Division by a number that the host knows: a multiplication and a shift. The GPU has no instruction to divide, and
// takes a hundred clocks, of which a CTA would spend several before it loads anything.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace jaxgemm {

// With 2^log >= divisor and multiplier = 2^(31 + log) / divisor, rounded up, number * multiplier / 2^(31 + log) has the
// right quotient for every number below 2^31, and multiplier fits 32 bits. Granlund and Montgomery, "Division by
// Invariant Integers using Multiplication", PLDI 1994, theorem 4.2.
class Divisor {
 public:
  // Of at least 1. What no number reaches is as good as any other such divisor.
  constexpr explicit Divisor(int64_t divisor)
      : divisor_(static_cast<unsigned>(std::clamp<int64_t>(divisor, 1, INT32_MAX))) {
    while (int64_t{1} << (shift_ - kBits) < divisor_) ++shift_;
    multiplier_ = static_cast<unsigned>(((uint64_t{1} << shift_) + divisor_ - 1) / divisor_);
  }

  struct Result {
    unsigned quotient, rest;
  };
  __host__ __device__ constexpr Result divide(unsigned number) const {
    const auto quotient = static_cast<unsigned>((static_cast<uint64_t>(number) * multiplier_) >> shift_);
    return {quotient, number - quotient * divisor_};
  }

 private:
  static constexpr int kBits = 31;
  unsigned divisor_, multiplier_ = 0;
  int shift_ = kBits;
};

// What is hardest: the largest numbers, and those next to a multiple, of divisors next to powers of two.
static_assert([] {
  for (int log = 0; log < 31; ++log) {
    for (int64_t divisor = (int64_t{1} << log) - 1; divisor <= (int64_t{1} << log) + 1; ++divisor) {
      if (divisor < 1) continue;
      const Divisor by(divisor);
      const int64_t last = INT32_MAX / divisor * divisor;
      for (const int64_t number : {int64_t{0}, divisor - 1, divisor, last - 1, last, int64_t{INT32_MAX}}) {
        const Divisor::Result result = by.divide(static_cast<unsigned>(number));
        if (result.quotient != number / divisor || result.rest != number % divisor) return false;
      }
    }
  }
  return true;
}());

}  // namespace jaxgemm
