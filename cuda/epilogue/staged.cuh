// The way of mma.sync accumulators out of registers: through shared memory, so that each warp then writes whole rows of
// out, 4 columns to a thread, and the code of the epilogue exists once and not once for every register.
#pragma once

#include "epilogue/epilogue.cuh"
#include "tile/fragment.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {

template <class Element>
struct VectorsOf;
template <>
struct VectorsOf<float> {
  using Pair = float2;
  using Quad = float4;
};
template <>
struct VectorsOf<int32_t> {
  using Pair = int2;
  using Quad = int4;
};

// The CTA tile in shared memory. Rows are padded: what a warp stores together, 8 rows of 8 columns, then lies in
// different banks.
template <class Accumulator, int kRows, int kCols>
struct StagedTile {
  static constexpr int kStride = kCols + 8;
  alignas(16) Accumulator elements[kRows * kStride];

  using Pair = typename VectorsOf<Accumulator>::Pair;
  using Quad = typename VectorsOf<Accumulator>::Quad;

  // Fragment i, j of the warp tile at (row, col). An interleaved operand has given a fragment's rows (columns) g and
  // g + 8 neighbouring rows 2g, 2g + 1 (columns, of two fragments) of out: FragmentLoader::kInterleaved.
  template <bool kInterleavedRows, bool kInterleavedCols, int kFragmentsM, int kFragmentsN>
  __device__ void store(const Accumulator (&r_tile)[kFragmentsM][kFragmentsN][4], int row, int col) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kFragmentsM; ++i) {
#pragma unroll
      for (int j = 0; j < kFragmentsN; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const fragment::Coord at = fragment::d(lane, 2 * half);
          const int m = row + i * fragment::kM + (kInterleavedRows ? at.row % 8 * 2 + half : at.row);
          if constexpr (kInterleavedCols) {
            Accumulator* pair = elements + m * kStride + col + j / 2 * 2 * fragment::kN + at.col * 2 + j % 2;
            pair[0] = r_tile[i][j][2 * half];
            pair[2] = r_tile[i][j][2 * half + 1];
          } else {
            *reinterpret_cast<Pair*>(elements + m * kStride + col + j * fragment::kN + at.col) =
                Pair{r_tile[i][j][2 * half], r_tile[i][j][2 * half + 1]};
          }
        }
      }
    }
  }

  // Calls write(row, col, quad), neighbours in neighbouring threads.
  template <int kThreads, class Write>
  __device__ void for_each_quad(Write&& write) const {
    constexpr int kQuadsPerRow = kCols / 4;
#pragma unroll 2
    for (int at = static_cast<int>(threadIdx.x); at < kRows * kQuadsPerRow; at += kThreads) {
      const int row = at / kQuadsPerRow, col = at % kQuadsPerRow * 4;
      write(row, col, *reinterpret_cast<const Quad*>(elements + row * kStride + col));
    }
  }

  // Calls write(row, col, value), neighbours in neighbouring threads.
  template <int kThreads, class Write>
  __device__ void for_each_element(Write&& write) const {
#pragma unroll 2
    for (int at = static_cast<int>(threadIdx.x); at < kRows * kCols; at += kThreads) {
      const int row = at / kCols, col = at % kCols;
      write(row, col, elements[row * kStride + col]);
    }
  }
};

}  // namespace jaxgemm
