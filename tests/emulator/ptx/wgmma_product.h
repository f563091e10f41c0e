// The arithmetic of wgmma: operands as float32, which has every number of every type exactly, and accumulators as the
// words that registers hold.
#pragma once

#include <cstdint>

namespace emu {

enum class WgmmaElement : uint8_t { kF16, kBf16, kTf32, kS8, kE4m3, kE5m2 };

constexpr int element_bytes(WgmmaElement element) {
  switch (element) {
    case WgmmaElement::kTf32: return 4;
    case WgmmaElement::kF16:
    case WgmmaElement::kBf16: return 2;
    case WgmmaElement::kS8:
    case WgmmaElement::kE4m3:
    case WgmmaElement::kE5m2: break;
  }
  return 1;
}

// The elements that `size` bytes hold, to values[0], values[step], ...
void decode(WgmmaElement element, const void* bytes, int size, float* values, int step);

// d (rows x n) += a (rows x depth) * b (depth x n); d is int32 if the operands are kS8, else float32.
void multiply(WgmmaElement element, const float* a, const float* b, uint32_t* d, int rows, int n, int depth);

}  // namespace emu
