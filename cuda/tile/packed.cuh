// Quantised weights as kernels read them: packed codes.
//
// The matrix (K x N) is cut into tiles of kPackedTileK x kPackedTileN, those of the same columns one after the other.
// Within a tile each lane of a warp has 16 bytes, one after the other: a word for each step of 16 rows, made of the
// 4-bit codes that PTX gives the lane of the fragment of A whose rows are the matrix' columns (ptx/mma.cuh). Code i of
// a word, from the lowest bits, is the element of register i % 4, half i / 4: so the same mask leaves a pair of codes
// in the two halves of a register for each of four shifts. jaxgemm/_packing.py writes this order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <cstdint>
#include <string>

#include "gemm.h"
#include "ptx/convert.cuh"

namespace jaxgemm {

inline constexpr int kPackedSteps = kPackedTileK / 16;  // steps along K of a tile
inline constexpr int kPackedTileBytes = kPackedTileK * kPackedTileN / 2;

// What kernels that read codes take: tokens, the numbers that codes become, and sums.
inline constexpr std::array<DTypes, 4> kMixedDTypes = {{{DType::kF16, DType::kF16, DType::kF16},
                                                        {DType::kBF16, DType::kBF16, DType::kBF16},
                                                        {DType::kF16, DType::kF16, DType::kF32},
                                                        {DType::kBF16, DType::kBF16, DType::kF32}}};

inline int64_t packed_tiles_k(const Problem& p) { return (p.K + kPackedTileK - 1) / kPackedTileK; }
inline int64_t packed_tiles_n(const Problem& p) { return (p.N + kPackedTileN - 1) / kPackedTileN; }

// The tiles of all batches.
struct PackedCodes {
  static constexpr int kLanes = 32;
  const uint4* tiles;
  int tiles_k, tiles_n;

  explicit PackedCodes(const GemmArgs& args)
      : tiles(static_cast<const uint4*>(args.rhs)),
        tiles_k(static_cast<int>(packed_tiles_k(args.problem))),
        tiles_n(static_cast<int>(packed_tiles_n(args.problem))) {}

  __device__ int64_t batch_words() const { return static_cast<int64_t>(tiles_n) * tiles_k * kLanes; }
  // The executing lane's words of the first tile of 16 columns, the last ones if there are none so far to the right; of
  // the first batch.
  __device__ const uint4* column(int tile_n) const {
    const int64_t column = tile_n < tiles_n ? tile_n : tiles_n - 1;
    return tiles + column * (tiles_k * kLanes) + threadIdx.x % kLanes;
  }
};

inline constexpr uint8_t kMiddle = 8;      // of 4-bit codes
inline constexpr int kColumnDistance = 8;  // of the two columns whose codes a lane has, in each fragment

// Codes to numbers of 16 bits, exactly: (code - zero) / kFactor, which the sums of their products are to be multiplied
// by. The lowest eight bits of a word's half hold two codes; a mask leaves a pair of one of them, where it counts 16
// times if it was the upper one, and a multiply-add does the rest.
template <class T>
struct CodePairs;

// What the mask leaves is a number already: below 2^-125 bfloat16 has units of 2^-133 in its lowest bit, and no
// exponent. (PTX ISA, "fma": subnormal numbers are supported.) 2^127 is the largest power of two to multiply them by.
template <>
struct CodePairs<__nv_bfloat16> {
  static constexpr float kFactor = 64.0f;                                 // 2^133 / 2^127
  static constexpr uint32_t kOnce = 0x7f007f00, kSixteenth = 0x7d007d00;  // 2^127 and 2^123
  uint32_t minus[2];                                                      // -zero / kFactor, of both columns

  __device__ CodePairs(uint32_t zero, uint32_t next) : minus{minus_of(zero), minus_of(next)} {}
  // Of zeros in the middle, which is -8 / 64: a constant that the compiler need not compute.
  __device__ CodePairs() : minus{0xbe00be00, 0xbe00be00} {}

  __device__ void fragment(uint32_t (&a)[4], uint32_t word) const {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t pair = word >> (4 * i);
      a[i] = ptx::fma2<__nv_bfloat16>(pair & 0x000f000f, kOnce, minus[0]);
      a[i + 1] = ptx::fma2<__nv_bfloat16>(pair & 0x00f000f0, kSixteenth, minus[1]);
    }
  }

 private:
  __device__ static uint32_t minus_of(uint32_t zero) {  // as of codes
    return ptx::mul2<__nv_bfloat16>(zero * 0x10001u, kOnce | 0x80008000);
  }
};

// A code in the lowest mantissa bits of a number that has units there is that number plus the code (Kim et al., "Who
// Says Elephants Can't Run: Bringing Large Scale MoE Models into Cloud Scale Production", arXiv:2211.10017,
// section 3.2).
template <>
struct CodePairs<__half> {
  static constexpr float kFactor = 1.0f;
  // 1024 has units in its lowest bit.
  static constexpr uint32_t kBase = 0x64006400, kSixteenth = 0x2c002c00;
  uint32_t offset, minus_scaled;  // 1024 + zero of the one column, -(64 + zero) of the other

  __device__ CodePairs(uint32_t zero, uint32_t next) : offset(kBase + zero * 0x10001u) {
    const float minus = -64.0f - static_cast<float>(next);
    minus_scaled = ptx::pack<__half>(minus, minus);
  }
  // Of zeros in the middle: 1024 + 8, and -(64 + 8).
  __device__ CodePairs() : offset(0x64086408), minus_scaled(0xd480d480) {}

  __device__ void fragment(uint32_t (&a)[4], uint32_t word) const {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t pair = word >> (4 * i);
      a[i] = ptx::sub2<__half>(ptx::masked_or<0x000f000f>(pair, kBase), offset);
      a[i + 1] = ptx::fma2<__half>(ptx::masked_or<0x00f000f0>(pair, kBase), kSixteenth, minus_scaled);
    }
  }
};

// Calls f.template operator()<T, kZeros, kSegments>() for the dtype of tokens, zero points that are not all in the
// middle, and scaled_parts() of a k-tile, a power of two up to kMostSegments.
template <int kMostSegments, int kSegments = 1, class F>
std::string dispatch_codes(const Problem& p, int segments, const F& f) {
  if constexpr (kSegments < kMostSegments) {
    if (segments != kSegments) return dispatch_codes<kMostSegments, 2 * kSegments>(p, segments, f);
  }
  const auto of_dtype = [&]<class T>() {
    return p.codes.zeros == Zeros::kMiddle ? f.template operator()<T, false, kSegments>()
                                           : f.template operator()<T, true, kSegments>();
  };
  return p.lhs_dtype == DType::kF16 ? of_dtype.template operator()<__half>()
                                    : of_dtype.template operator()<__nv_bfloat16>();
}

}  // namespace jaxgemm
