#include "ptx/wgmma_product.h"

#include <algorithm>
#include <cstring>

#include "ptx/float_formats.h"

namespace emu {
namespace {

constexpr int kMaxN = 256;

constexpr float s8_to_float(int8_t x) { return x; }

template <class Bits, float (*kToFloat)(Bits)>
void decode_as(const void* bytes, int size, float* values, int step) {
  for (int i = 0; i < size / static_cast<int>(sizeof(Bits)); ++i) {
    Bits bits;
    std::memcpy(&bits, static_cast<const char*>(bytes) + i * sizeof(Bits), sizeof(Bits));
    values[i * step] = kToFloat(bits);
  }
}

// Plain float32 sums, term by term: the tensor core's own rounding is not modelled.
void add_products(const float* a, const float* b, float* __restrict sums, int n, int depth) {
  for (int k = 0; k < depth; ++k) {
    const float factor = a[k];
    for (int col = 0; col < n; ++col) sums[col] += factor * b[k * n + col];
  }
}

}  // namespace

void decode(WgmmaElement element, const void* bytes, int size, float* values, int step) {
  switch (element) {
    case WgmmaElement::kF16: return decode_as<uint16_t, f16_to_float>(bytes, size, values, step);
    case WgmmaElement::kBf16: return decode_as<uint16_t, bf16_to_float>(bytes, size, values, step);
    case WgmmaElement::kTf32: return decode_as<uint32_t, tf32_to_float>(bytes, size, values, step);
    case WgmmaElement::kS8: return decode_as<int8_t, s8_to_float>(bytes, size, values, step);
    case WgmmaElement::kE4m3: return decode_as<uint8_t, e4m3_to_float>(bytes, size, values, step);
    case WgmmaElement::kE5m2: return decode_as<uint8_t, e5m2_to_float>(bytes, size, values, step);
  }
}

void multiply(WgmmaElement element, const float* a, const float* b, uint32_t* d, int rows, int n, int depth) {
  const size_t row_bytes = static_cast<size_t>(n) * sizeof(uint32_t);
  float sums[kMaxN];  // of a row
  for (int row = 0; row < rows; ++row, a += depth, d += n) {
    if (element != WgmmaElement::kS8) {
      std::memcpy(sums, d, row_bytes);
      add_products(a, b, sums, n, depth);
      std::memcpy(d, sums, row_bytes);
    } else {  // one instruction's products are less than 2^20 in all, which float32 has exactly; D wraps around
      std::fill_n(sums, n, 0.0f);
      add_products(a, b, sums, n, depth);
      for (int col = 0; col < n; ++col) d[col] += static_cast<uint32_t>(static_cast<int32_t>(sums[col]));
    }
  }
}

}  // namespace emu
