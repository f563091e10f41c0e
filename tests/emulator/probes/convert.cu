// Probes of the conversions between float32 and narrower formats, on numbers that they can get wrong.
#include "probes/one_warp.cuh"
#include "ptx/convert.cuh"

namespace jaxgemm::probes {
namespace {

// A float32 that conversions can get wrong, of one of eight kinds.
__device__ float tricky(uint32_t word, int kind) {
  const uint32_t sign = word & 0x80000000, mantissa = word & 0x7fffff;
  const auto with_exponent = [&](uint32_t exponent, uint32_t bits) { return sign | exponent << 23 | bits; };
  switch (kind) {
    case 0: return bits_float(word);
    case 1: return bits_float((word & 0xffff0000) | 0x8000);                                    // tie of bf16
    case 2: return bits_float(with_exponent(113 + word % 30, (mantissa & 0x7fe000) | 0x1000));  // tie of f16
    case 3: return bits_float(with_exponent(100 + word % 14, mantissa));                        // subnormal f16
    case 4: return bits_float(with_exponent(0, mantissa));                                      // subnormal f32
    case 5: return bits_float(with_exponent(142, 0x7fd000 + (mantissa & 0x2fff)));              // near 65520
    case 6: return bits_float(with_exponent(255, word & 0x40 ? mantissa : word & 0x20 ? mantissa & 0x1fff : 0));
    default: return bits_float(with_exponent(254, 0x7f0000 | mantissa));  // near the largest
  }
}

__device__ uint32_t canonical_half(uint32_t bits, uint32_t infinity) {
  return (bits & 0x7fff) > infinity ? 0x7fff : bits;
}

// A pair of float16 or bfloat16, with all NaNs alike.
template <class T>
__device__ uint32_t canonical(uint32_t bits) {
  constexpr uint32_t kInfinity = std::is_same_v<T, __half> ? 0x7c00 : 0x7f80;
  return canonical_half(bits & 0xffff, kInfinity) | canonical_half(bits >> 16, kInfinity) << 16;
}

__device__ uint32_t canonical(float x) {
  const uint32_t bits = float_bits(x);
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : bits;
}

template <uint32_t (*kConvert)(uint32_t word, uint32_t other, int kind)>
struct Conversion {
  static constexpr int kWordsPerLane = 64;
  static constexpr int kInWords = kLanes * kWordsPerLane, kOutWords = kInWords;
  using Shared = NoStorage;
  static __device__ void run(Shared&, const uint32_t* in, uint32_t* out) {
    for (int i = lane(); i < kInWords; i += kLanes) out[i] = kConvert(in[i], in[i ^ 1], i / kLanes % 8);
  }
};

__device__ uint32_t to_tf32(uint32_t word, uint32_t, int kind) {
  return canonical(bits_float(ptx::to_tf32(tricky(word, kind))));
}

template <class T>
__device__ uint32_t pack(uint32_t word, uint32_t other, int kind) {
  return canonical<T>(ptx::pack<T>(tricky(word, kind), tricky(other, (kind + 3) % 8)));
}

__device__ uint32_t float2half(uint32_t word, uint32_t, int kind) {
  return canonical<__half>(__half_as_ushort(__float2half_rn(tricky(word, kind))));
}

__device__ uint32_t floats2half2(uint32_t word, uint32_t other, int kind) {
  const __half2 pair = __floats2half2_rn(tricky(word, kind), tricky(other, (kind + 3) % 8));
  return canonical<__half>(*reinterpret_cast<const uint32_t*>(&pair));
}

__device__ uint32_t float2bfloat16(uint32_t word, uint32_t, int kind) {
  return canonical<__nv_bfloat16>(__bfloat16_as_ushort(__float2bfloat16_rn(tricky(word, kind))));
}

__device__ uint32_t floats2bfloat162(uint32_t word, uint32_t other, int kind) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(tricky(word, kind), tricky(other, (kind + 3) % 8));
  return canonical<__nv_bfloat16>(*reinterpret_cast<const uint32_t*>(&pair));
}

__device__ uint32_t half2float(uint32_t word, uint32_t, int) {
  return canonical(__half2float(__ushort_as_half(static_cast<uint16_t>(word))));
}

__device__ uint32_t bfloat162float(uint32_t word, uint32_t, int) {
  return canonical(__bfloat162float(__ushort_as_bfloat16(static_cast<uint16_t>(word))));
}

constexpr Probe kConvertProbes[] = {
    probe<Conversion<to_tf32>>("convert.tf32"),
    probe<Conversion<pack<__half>>>("convert.pack.f16"),
    probe<Conversion<pack<__nv_bfloat16>>>("convert.pack.bf16"),
    probe<Conversion<float2half>>("convert.float2half"),
    probe<Conversion<floats2half2>>("convert.floats2half2"),
    probe<Conversion<float2bfloat16>>("convert.float2bfloat16"),
    probe<Conversion<floats2bfloat162>>("convert.floats2bfloat162"),
    probe<Conversion<half2float>>("convert.half2float"),
    probe<Conversion<bfloat162float>>("convert.bfloat162float"),
};

}  // namespace

std::span<const Probe> convert_probes() { return kConvertProbes; }

}  // namespace jaxgemm::probes
