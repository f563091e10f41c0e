// Scales and zero points of groups of quantised weights' rows, as warps of int4_mma have them.
//
// A stage of tokens has those of each group that a unit of rows meets, too, of the columns of each warp: cp.async
// brings eight columns of a group to a lane, which takes fewer instructions than to load them one by one, and no
// registers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "gemm.h"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "tile/divisor.cuh"
#include "tile/packed.cuh"
#include "tile/pad_copy.h"

namespace jaxgemm {

// What kernels are compiled for: scales of 16 bits, and zero points too; or float32 scales, with zero points or
// without.
enum class Grouping { kScales16, kScales16Zeros, kScales32 };

// Of all groups.
struct GroupParameters {
  static constexpr int kOctet = 8;            // columns that are copied together: rows begin at multiples of them
  static constexpr int kPaddedMultiple = 16;  // of rows that do not: bytes of zero points then are whole vectors

  const void* scales;
  const uint8_t* zeros;  // nullptr: all are in the middle of the codes
  int64_t ld, batch_stride, N;
  Divisor by_group;
  DType scale_dtype;

  // Where they lie, perhaps as copies.
  GroupParameters(const Problem& p, const PaddableOperand& scales, const PaddableOperand& zeros)
      : scales(scales.data),
        zeros(p.codes.zeros == Zeros::kMiddle ? nullptr : static_cast<const uint8_t*>(zeros.data)),
        ld(scales.view.ld),
        batch_stride(scales.view.batch_stride),
        N(p.N),
        by_group(p.codes.group_size),
        scale_dtype(p.codes.scale_dtype) {}

  static MatrixView view(const Problem& p) {
    const int64_t groups = p.codes.groups(p.K);
    return {.rows = groups, .cols = p.N, .ld = p.N, .batch_stride = groups * p.N, .transposed = false};
  }
};

// Of kSegments groups of kColumns columns.
template <class Scale, int kSegments, int kColumns>
struct StagedGroups {
  alignas(16) Scale scales[kSegments][kColumns];
  alignas(8) uint8_t zeros[kSegments][kColumns];
};

// Of the kRowTiles x 16 columns from `col` on, which are one warp's, of kSegments groups of kRows rows, or the same
// group where it has more, from each row on that copy() is given. Scales of 16 bits of one group are not staged but
// loaded by each lane, which takes fewer instructions.
template <Grouping kGrouping, int kRowTiles, int kSegments, int kRows>
class WarpGroups {
  static constexpr int kLanes = 32, kOctet = GroupParameters::kOctet, kOctets = kRowTiles * kPackedTileN / kOctet;
  static_assert(kOctet == kColumnDistance && kSegments * kOctets <= kLanes);
  static constexpr bool kStagesScales = kGrouping == Grouping::kScales32 || kSegments > 1;
  static constexpr bool kStagesZeros = kGrouping != Grouping::kScales16;

  int64_t first;  // in the arrays of all groups: of the octet that the lane copies, or of the warp's first column
  int columns;    // of the warp that there are; may be negative

 public:
  using Scale = std::conditional_t<kGrouping == Grouping::kScales32, float, uint16_t>;

  // Of one segment, what is not staged, as it was loaded: to convert it is to wait for it.
  struct Loaded {
    uint16_t scales[kRowTiles][2];
  };

  // Of the batch whose elements begin at batch_elements.
  __device__ WarpGroups(const GroupParameters& all, int64_t batch_elements, int64_t col)
      : columns(static_cast<int>(all.N - col < kOctets * kOctet ? all.N - col : kOctets * kOctet)) {
    first = batch_elements + col + (kStagesScales ? copied_octet() : 0);
  }

  // Begins to copy to the stage what is staged of the groups of row k and so on.
  template <class Staged>
  __device__ void copy(Staged& s_groups, const GroupParameters& all, int k, int rows) const {
    if constexpr (kStagesScales || kStagesZeros) {
      if (segment() >= kSegments) return;
      const int64_t at = first + (kStagesScales ? 0 : copied_octet()) + group_at(all, k, segment() * kRows, rows);
      if constexpr (kStagesScales) {
        constexpr int kVector = 16 / sizeof(Scale);
#pragma unroll
        for (int i = 0; i < kOctet; i += kVector) {
          ptx::cp_async_16(s_groups.scales[segment()] + octet() + i, static_cast<const Scale*>(all.scales) + at + i);
        }
      }
      if (has_zeros(all)) ptx::cp_async<kOctet>(s_groups.zeros[segment()] + octet(), all.zeros + at, kOctet);
    }
  }

  // Of a segment of the unit from row k on, begins to load what is not staged, of the two columns that a lane has of
  // each fragment: lane / 4, and that plus kColumnDistance.
  __device__ void load(Loaded& loaded, const GroupParameters& all, int segment, int k, int rows) const {
    if constexpr (!kStagesScales) {
      const auto* g_scales = static_cast<const Scale*>(all.scales) + first + group_at(all, k, segment * kRows, rows);
#pragma unroll
      for (int i = 0; i < kOctets; ++i) {
        const int column = column_of_lane(i);
        loaded.scales[i / 2][i % 2] = g_scales[column < columns ? column : columns - 1];
      }
    }
  }

  // Of those columns.
  template <class Staged>
  __device__ void scales(float (&values)[2], const Loaded& loaded, const Staged& s_groups, const GroupParameters& all,
                         int segment, int row_tile) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kGrouping == Grouping::kScales32) {
        values[i] = s_groups.scales[segment][column_of_lane(row_tile * 2 + i)];
      } else {
        const uint32_t bits =
            kStagesScales ? s_groups.scales[segment][column_of_lane(row_tile * 2 + i)] : loaded.scales[row_tile][i];
        values[i] = ptx::widen(bits, all.scale_dtype == DType::kF16);
      }
    }
  }

  // What turns codes of those columns to numbers.
  template <class T, class Staged>
  __device__ CodePairs<T> codes(const Staged& s_groups, const GroupParameters& all, int segment, int row_tile) const {
    if constexpr (!kStagesZeros) return {};
    uint32_t zeros[2] = {kMiddle, kMiddle};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (has_zeros(all)) zeros[i] = s_groups.zeros[segment][column_of_lane(row_tile * 2 + i)];
      if (zeros[i] > kMostZero) zeros[i] = kMostZero;
    }
    return {zeros[0], zeros[1]};
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ static int octet() { return lane() % kOctets * kOctet; }
  __device__ static int segment() { return lane() / kOctets; }
  __device__ static int column_of_lane(int octet) { return lane() / 4 + octet * kColumnDistance; }
  __device__ static bool has_zeros(const GroupParameters& all) { return kStagesZeros && all.zeros != nullptr; }
  // Of columns that there are not, those of the last ones are copied: they meet sums that are not written.
  __device__ int copied_octet() const { return octet() < columns ? octet() : (columns - 1) & ~(kOctet - 1); }
  // In the arrays of all groups, of row k, which exists, or of one so many rows farther on, if it does.
  __device__ static int64_t group_at(const GroupParameters& all, int k, int farther, int rows) {
    return all.by_group.divide(static_cast<unsigned>(k + farther < rows ? k + farther : k)).quotient * all.ld;
  }
};

}  // namespace jaxgemm
