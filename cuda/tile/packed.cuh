// Quantised weights as kernels read them: packed codes, and the scales and zero points of groups of rows.
//
// The matrix (K x N) is cut into tiles of kPackedTileK x kPackedTileN, those of the same columns one after the other.
// Within a tile each lane of a warp has 16 bytes, one after the other: a word for each step of 16 rows, made of the
// 4-bit codes that PTX gives the lane of the fragment of A whose rows are the matrix' columns (ptx/mma.cuh). Code i of
// a word, from the lowest bits, is the element of register i % 4, half i / 4: so the same mask leaves a pair of codes
// in the two halves of a register for each of four shifts. jaxgemm/_packing.py writes this order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "gemm.h"
#include "ptx/convert.cuh"
#include "ptx/load.cuh"
#include "tile/divisor.cuh"

namespace jaxgemm {

inline constexpr int kPackedSteps = kPackedTileK / 16;  // steps along K of a tile
inline constexpr int kPackedTileBytes = kPackedTileK * kPackedTileN / 2;

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

// What kernels are compiled for: no zero points and scales of 16 bits; zero points too; or float32 scales, with zero
// points or without.
enum class Grouping { kScales16, kScales16Zeros, kScales32 };

inline constexpr uint8_t kMiddle = 8;      // of 4-bit codes
inline constexpr int kColumnDistance = 8;  // of the two columns whose codes a lane has, in each fragment

// Of all groups.
struct GroupParameters {
  const void* scales;
  const uint8_t* zeros;  // nullptr: all are in the middle of the codes
  int64_t groups, N;
  Divisor by_group;
  DType scale_dtype;

  explicit GroupParameters(const GemmArgs& args)
      : scales(args.scales),
        zeros(args.problem.codes.zeros == Zeros::kMiddle ? nullptr : static_cast<const uint8_t*>(args.zeros)),
        groups(args.problem.codes.groups(args.problem.K)),
        N(args.problem.N),
        by_group(args.problem.codes.group_size),
        scale_dtype(args.problem.codes.scale_dtype) {}

  Grouping grouping() const {
    if (scale_dtype == DType::kF32) return Grouping::kScales32;
    return zeros == nullptr ? Grouping::kScales16 : Grouping::kScales16Zeros;
  }

  __device__ int64_t batch_elements() const { return groups * N; }

  // By a predicate, or by branches: they are slower, and keep ptxas from doing so much at once that registers spill.
  template <bool kPredicated>
  __device__ float scale(float scale) const {
    return scale;
  }
  template <bool kPredicated>
  __device__ float scale(uint16_t bits) const {
    if constexpr (kPredicated) return ptx::widen(bits, scale_dtype == DType::kF16);
    const float half = __half2float(__ushort_as_half(bits)), bfloat = __bfloat162float(__ushort_as_bfloat16(bits));
    return scale_dtype == DType::kF16 ? half : bfloat;
  }
};

// Scales and zero points of kSegments groups of the columns of kRowTiles fragments, which a warp has from `col` on. The
// four lanes of a quad have the same columns: each of them loads a part of the values, which takes few instructions and
// registers, and shuffles bring the others'; but all of them, if they are only scales of one group, where to wait for
// shuffles takes longer. Kept as they were loaded: to convert them is to wait for them.
template <Grouping kGrouping, int kRowTiles, int kSegments, bool kPredicated>
class QuadParameters {
  static constexpr int kQuad = 4, kSharers = kGrouping == Grouping::kScales16 && kSegments == 1 ? 1 : kQuad;
  static constexpr int kColumns = 2 * kRowTiles, kLoads = (kColumns * kSegments + kSharers - 1) / kSharers;
  static_assert(kSharers == 1 ? kSegments == 1 : kSharers % kColumns == 0);
  using Scale = std::conditional_t<kGrouping == Grouping::kScales32, float, uint16_t>;

  Scale scales[kLoads] = {};
  uint8_t zeros[kLoads] = {};

  // Values are counted by segments, then columns; of each kSharers the executing lane loads this one.
  __device__ static int own() { return static_cast<int>(threadIdx.x) % kSharers; }
  // To be called by all lanes of a warp: the value of that number, of one of which each lane has its own.
  template <class T>
  __device__ static T ask(T own, int value) {
    if constexpr (kSharers == 1) return own;
    return __shfl_sync(0xffffffff, own, value % kSharers, kSharers);
  }

 public:
  // Where the executing lane's first column is, of the batch whose elements begin at batch_elements.
  struct Columns {
    const Scale* scales;   // of the first group
    const uint8_t* zeros;  // nullptr: there are none
    int count;             // of columns from there on

    __device__ Columns(const GroupParameters& all, int64_t batch_elements, int64_t col) {
      constexpr int kMost = kColumns * kColumnDistance;
      col += static_cast<int>(threadIdx.x) % PackedCodes::kLanes / kQuad + own() % kColumns * kColumnDistance;
      scales = static_cast<const Scale*>(all.scales) + batch_elements + col;
      zeros = all.zeros == nullptr ? nullptr : all.zeros + batch_elements + col;
      count = static_cast<int>(all.N - col < kMost ? all.N - col : kMost);
    }
  };

  // Of the groups of row k, which exists, of row k + kRows, and so on; of k again for a row that does not. Of columns
  // that there are not, nothing is read, and what was in their place stays.
  template <int kRows>
  __device__ void load(const Columns& columns, const GroupParameters& all, int k, int rows) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int column = kSharers == 1 ? i * kColumnDistance : 0, segment = (i * kSharers + own()) / kColumns;
      const int at = k + (kSharers > 1 && segment < kSegments ? segment : 0) * kRows;
      const int64_t row = all.by_group.divide(static_cast<unsigned>(at < rows ? at : k)).quotient * all.N;
      if (column >= columns.count) continue;
      const Scale* g_scales = columns.scales + row;
      scales[i] = g_scales[column];
      if constexpr (kGrouping == Grouping::kScales16Zeros) zeros[i] = columns.zeros[row + column];
      if constexpr (kGrouping == Grouping::kScales32) {
        zeros[i] = columns.zeros == nullptr ? kMiddle : columns.zeros[row + column];
      }
    }
  }

  // Of the two columns of a fragment, lane / 4 and that plus kColumnDistance.
  __device__ void ask_scales(float (&values)[2], const GroupParameters& all, int segment, int row_tile) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int value = segment * kColumns + row_tile * 2 + i;
      values[i] = ask(all.template scale<kPredicated>(scales[value / kSharers]), value);
    }
  }
  __device__ void ask_zeros(uint32_t (&values)[2], int segment, int row_tile) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int value = segment * kColumns + row_tile * 2 + i;
      const uint32_t own = zeros[value / kSharers];
      values[i] = kGrouping == Grouping::kScales16 ? kMiddle : ask(own < kMostZero ? own : kMostZero, value);
    }
  }
};

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

  __device__ void fragment(uint32_t (&a)[4], uint32_t word) const {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t pair = word >> (4 * i);
      a[i] = ptx::sub2<__half>(ptx::masked_or<0x000f000f>(pair, kBase), offset);
      a[i + 1] = ptx::fma2<__half>(ptx::masked_or<0x00f000f0>(pair, kBase), kSixteenth, minus_scaled);
    }
  }
};

}  // namespace jaxgemm
