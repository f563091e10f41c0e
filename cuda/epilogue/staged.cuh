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

// How far the rows of a staged tile are moved to the right: by their phase in out (see Epilogue::phase()), so that four
// neighbours that can be stored at once can also be read at once.
struct RowPhases {
  unsigned first = 0, ld = 0;  // of the tile's first row; from row to row. All multiples of 4 are as good as 0

  __device__ RowPhases() {}
  __device__ RowPhases(const Epilogue& epilogue, const TileCoord& tile)
      : first(epilogue.phase(tile.batch, tile.row, tile.col)), ld(static_cast<unsigned>(epilogue.ld)) {}

  __device__ int of(int row) const { return static_cast<int>((first + static_cast<unsigned>(row) * ld) % 4); }
  __device__ bool all_zero() const { return first % 4 == 0 && ld % 4 == 0; }
};

// The CTA tile in shared memory. Rows are padded: what a warp stores together, 8 rows of 8 columns, then lies in
// different banks, and there is room for rows that are moved.
template <class Accumulator, int kRows, int kCols>
struct StagedTile {
  static constexpr int kStride = kCols + 8;
  alignas(16) Accumulator elements[kRows * kStride];

  using Pair = typename VectorsOf<Accumulator>::Pair;
  using Quad = typename VectorsOf<Accumulator>::Quad;

  // The warp tile at (row, col), made of fragments whose rows (columns) are dealt to the lanes in groups: see dealt().
  // `add`: to what is there.
  template <int kRowGroup, int kColGroup, int kFragmentsM, int kFragmentsN>
  __device__ void store(const Accumulator (&r_tile)[kFragmentsM][kFragmentsN][4], int row, int col,
                        const RowPhases& phases, bool add = false) {
    if (phases.all_zero()) {
      store_rows<kRowGroup, kColGroup, true>(r_tile, row, col, phases, add);
    } else {
      store_rows<kRowGroup, kColGroup, false>(r_tile, row, col, phases, add);
    }
  }

  // Calls write_quad(row, col, quad) for all columns, of rows that are not moved. Neighbours in neighbouring threads.
  template <int kThreads, class WriteQuad>
  __device__ void for_each_quad(WriteQuad&& write_quad) const {
    constexpr int kRowsPerStep = kThreads / kQuadsPerRow;
    static_assert(kRowsPerStep * kQuadsPerRow == kThreads && kRows % kRowsPerStep == 0);
    const int first_row = static_cast<int>(threadIdx.x) / kQuadsPerRow;
    const int col = static_cast<int>(threadIdx.x) % kQuadsPerRow * 4;
#pragma unroll 8
    for (int i = 0; i < kRows / kRowsPerStep; ++i) {
      const int row = first_row + i * kRowsPerStep;
      write_quad(row, col, *reinterpret_cast<const Quad*>(elements + row * kStride + col));
    }
  }

  // The same of rows that are moved, for four columns that can be stored at once; then calls write(row, col, value) for
  // the columns that are left over at the ends of the rows.
  template <int kThreads, class WriteQuad, class Write>
  __device__ void for_each_moved_quad(const RowPhases& phases, WriteQuad&& write_quad, Write&& write) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 2
    for (int at = thread; at < kRows * kQuadsPerRow; at += kThreads) {
      const int row = at / kQuadsPerRow, quad = at % kQuadsPerRow, phase = phases.of(row);
      if (quad == 0 && phase > 0) continue;  // the row begins within this quad
      write_quad(row, quad * 4 - phase, *reinterpret_cast<const Quad*>(elements + row * kStride + quad * 4));
    }
    if (phases.all_zero()) return;
#pragma unroll 1
    for (int at = thread; at < kRows * 4; at += kThreads) {
      const int row = at / 4, phase = phases.of(row);
      if (phase == 0) continue;
      const int s_col = at % 4 < phase ? kCols + at % 4 : at % 4;
      write(row, s_col - phase, elements[row * kStride + s_col]);
    }
  }

 private:
  static constexpr int kQuadsPerRow = kCols / 4;

  template <int kRowGroup, int kColGroup, bool kVectors, int kFragmentsM, int kFragmentsN>
  __device__ void store_rows(const Accumulator (&r_tile)[kFragmentsM][kFragmentsN][4], int row, int col,
                             const RowPhases& phases, bool add) {
    constexpr int kNeighbours = kColGroup == 1 ? 2 : 4;  // columns that a lane holds and stores together
    constexpr int kNeighbourSlots = kColGroup < kNeighbours ? kColGroup : kNeighbours;
    const fragment::Coord first = fragment::d(static_cast<int>(threadIdx.x) % 32, 0);
#pragma unroll
    for (int slot = 0; slot < 2 * kFragmentsM; ++slot) {
      const int tile_row = row + fragment::dealt<kRowGroup>(slot, first.row);
      Accumulator* s_row = elements + tile_row * kStride + col + (kVectors ? 0 : phases.of(tile_row));
#pragma unroll
      for (int j = 0; j < kFragmentsN; j += kNeighbourSlots) {
#pragma unroll
        for (int c = 0; c < 2; c += kNeighbours / kNeighbourSlots) {
          const auto sum = [&](int i) { return r_tile[slot / 2][j + i % kColGroup][slot % 2 * 2 + c + i / kColGroup]; };
          Accumulator* s_sums = s_row + fragment::dealt<kColGroup>(j, first.col + c);
          if constexpr (!kVectors) {
#pragma unroll
            for (int i = 0; i < kNeighbours; ++i) s_sums[i] = add ? s_sums[i] + sum(i) : sum(i);
          } else if constexpr (kNeighbours == 2) {
            Pair& s_pair = *reinterpret_cast<Pair*>(s_sums);
            const Pair pair = {sum(0), sum(1)};
            s_pair = add ? Pair{s_pair.x + pair.x, s_pair.y + pair.y} : pair;
          } else {
            Quad& s_quad = *reinterpret_cast<Quad*>(s_sums);
            const Quad quad = {sum(0), sum(1), sum(2), sum(3)};
            s_quad = add ? Quad{s_quad.x + quad.x, s_quad.y + quad.y, s_quad.z + quad.z, s_quad.w + quad.w} : quad;
          }
        }
      }
    }
  }
};

// Of either type of sums.
template <int kRows, int kCols>
union StagedSums {
  StagedTile<float, kRows, kCols> floats;
  StagedTile<int32_t, kRows, kCols> integers;
  __device__ auto& of(float) { return floats; }
  __device__ auto& of(int32_t) { return integers; }
};

// Writes what of a staged tile, stored with the RowPhases of its place in out, lies inside out. The CTA has
// kThreads threads. `fix` is what becomes of sums first (recompute.cuh).
template <int kThreads, class Accumulator, int kRows, int kCols, class Fix>
__device__ void write_moved_tile(const StagedTile<Accumulator, kRows, kCols>& s_out, const RowPhases& phases,
                                 const Epilogue& epilogue, const Fix& fix, const TileCoord& tile, int64_t M,
                                 int64_t N) {
  s_out.template for_each_moved_quad<kThreads>(
      phases,
      [&](int row, int col, auto quad) {
        const int64_t m = tile.row + row, n = tile.col + col;
        if (m >= M || n >= N) return;
        Accumulator sums[4] = {quad.x, quad.y, quad.z, quad.w};
        fix(sums, tile.batch, m, n, N);
        epilogue.store4(tile.batch, m, n, N, sums, true);
      },
      [&](int row, int col, Accumulator sum) {
        const int64_t m = tile.row + row, n = tile.col + col;
        if (m >= M || n >= N) return;
        Accumulator sums[4] = {sum, 0, 0, 0};
        fix(sums, tile.batch, m, n, n + 1);
        epilogue.store(tile.batch, m, n, sums[0]);
      });
}

}  // namespace jaxgemm
