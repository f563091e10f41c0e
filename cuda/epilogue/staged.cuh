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

  // The warp tile at (row, col), made of fragments whose rows (columns) are dealt to the lanes in groups: see dealt().
  template <int kRowGroup, int kColGroup, int kFragmentsM, int kFragmentsN>
  __device__ void store(const Accumulator (&r_tile)[kFragmentsM][kFragmentsN][4], int row, int col) {
    constexpr int kNeighbours = kColGroup == 1 ? 2 : 4;  // columns that a lane holds and stores together
    constexpr int kNeighbourSlots = kColGroup < kNeighbours ? kColGroup : kNeighbours;
    const fragment::Coord first = fragment::d(static_cast<int>(threadIdx.x) % 32, 0);
#pragma unroll
    for (int slot = 0; slot < 2 * kFragmentsM; ++slot) {
      Accumulator* s_row = elements + (row + fragment::dealt<kRowGroup>(slot, first.row)) * kStride + col;
#pragma unroll
      for (int j = 0; j < kFragmentsN; j += kNeighbourSlots) {
#pragma unroll
        for (int c = 0; c < 2; c += kNeighbours / kNeighbourSlots) {
          const auto sum = [&](int i) { return r_tile[slot / 2][j + i % kColGroup][slot % 2 * 2 + c + i / kColGroup]; };
          Accumulator* s_sums = s_row + fragment::dealt<kColGroup>(j, first.col + c);
          if constexpr (kNeighbours == 2) {
            *reinterpret_cast<Pair*>(s_sums) = {sum(0), sum(1)};
          } else {
            *reinterpret_cast<Quad*>(s_sums) = {sum(0), sum(1), sum(2), sum(3)};
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
