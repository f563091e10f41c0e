// The way of a warp's mma.sync accumulators from its lanes' registers to out, each lane its own neighbours along a row:
// nothing is exchanged, no other warp waited for, and stores are short. For so few sums that this takes less. Where
// rows of out begin anywhere, and a CTA has whole ones, they are put together in shared memory.
#pragma once

#include "epilogue/epilogue.cuh"
#include "epilogue/out_run.cuh"
#include "tile/fragment.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {

// Of one lane, the accumulators of a warp tile whose rows (columns) are dealt in groups (fragment::dealt()). They are
// runs of neighbours, each at a multiple of its length.
template <int kRowGroup, int kColGroup, class Accumulator, int kFragmentsM, int kFragmentsN>
struct LaneRuns {
  static_assert(kFragmentsN % kColGroup == 0);
  static constexpr int kElems = kColGroup == 1 ? 2 : 4, kRunsOfRow = 2 * kFragmentsN / kElems,
                       kRuns = 2 * kFragmentsM * kRunsOfRow;

  __device__ static int row(int run, const fragment::Coord& first) {
    return fragment::dealt<kRowGroup>(run / kRunsOfRow, first.row);
  }
  __device__ static int col(int run, const fragment::Coord& first) {
    const Place place = place_of(run, 0);
    return fragment::dealt<kColGroup>(place.slot, first.col + place.col);
  }

  Accumulator values[kRuns][4] = {};  // of which kElems are used

  __device__ explicit LaneRuns(const Accumulator (&sums)[kFragmentsM][kFragmentsN][4]) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const int row_slot = run / kRunsOfRow;
#pragma unroll
      for (int i = 0; i < kElems; ++i) {
        const Place place = place_of(run, i);
        values[run][i] = sums[row_slot / 2][place.slot][row_slot % 2 * 2 + place.col];
      }
    }
  }

 private:
  struct Place {
    int slot, col;  // which fragment, and which of a lane's two columns of it
  };
  __device__ static constexpr Place place_of(int run, int i) {
    const int at = run % kRunsOfRow * kElems + i;  // among the lane's columns, as they lie in a row
    return {at / (2 * kColGroup) * kColGroup + at % kColGroup, at / kColGroup % 2};
  }
};

// Only rounded, to `Out`: what lies inside out of the warp tile at `tile`.
template <class Out, class Runs>
__device__ void write_plain_runs(const Runs& runs, const Epilogue& epilogue, const TileCoord& tile,
                                 const fragment::Coord& first, int64_t M, int64_t N) {
  Out* g_tile =
      static_cast<Out*>(epilogue.out) + tile.batch * epilogue.batch_stride + tile.row * epilogue.ld + tile.col;
#pragma unroll
  for (int run = 0; run < Runs::kRuns; ++run) {
    const int row = Runs::row(run, first), col = Runs::col(run, first);
    Out* g_run = g_tile + row * epilogue.ld + col;
    const int64_t cols = tile.row + row < M ? N - tile.col - col : 0;
    if (epilogue.quads_aligned && cols >= Runs::kElems) {
      if constexpr (Runs::kElems == 4) {
        round4(g_run, runs.values[run]);
      } else {
        round2(g_run, runs.values[run]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Runs::kElems; ++i) {
        if (i < cols) round1(g_run + i, runs.values[run][i]);
      }
    }
  }
}

// The same where rows of out lie end to end, of a CTA tile at `tile` that has all columns, from shared memory: what it
// has of out is one run.
template <class Out, int kThreads, class Runs>
__device__ void write_whole_rows(const Runs& runs, char* s_bytes, const Epilogue& epilogue, const TileCoord& tile,
                                 int rows, int warp_row, int warp_col, const fragment::Coord& first, int cols) {
  const OutRun<Out> run(static_cast<Out*>(epilogue.out) + tile.batch * epilogue.batch_stride + tile.row * epilogue.ld);
  Out* s_first = run.staged(s_bytes);
#pragma unroll
  for (int i = 0; i < Runs::kRuns; ++i) {
    const int col = warp_col + Runs::col(i, first);
    Out* s_elements = s_first + (warp_row + Runs::row(i, first)) * cols + col;
#pragma unroll
    for (int j = 0; j < Runs::kElems; ++j) {
      if (col + j < cols) round1(s_elements + j, runs.values[i][j]);
    }
  }
  __syncthreads();
  run.template write<kThreads>(s_first, static_cast<int>(threadIdx.x), rows * cols);
}

// The same with all that an epilogue may have to do. The code, which is long, is there once: runs take turns in the
// same registers. `fix` is what becomes of sums first (recompute.cuh).
template <class Runs, class Fix>
__device__ void write_runs(Runs& runs, const Epilogue& epilogue, const Fix& fix, const TileCoord& tile,
                           const fragment::Coord& first, int64_t M, int64_t N) {
#pragma unroll 1
  for (int run = 0; run < Runs::kRuns; ++run) {
    const int64_t row = tile.row + Runs::row(run, first), col = tile.col + Runs::col(run, first);
    if (row < M && col < N) {
      const int64_t end = N - col < Runs::kElems ? N : col + Runs::kElems;
      fix(runs.values[0], tile.batch, row, col, end);
      epilogue.store4(tile.batch, row, col, end, runs.values[0]);
    }
#pragma unroll
    for (int next = 1; next < Runs::kRuns; ++next) {
#pragma unroll
      for (int i = 0; i < 4; ++i) runs.values[next - 1][i] = runs.values[next][i];
    }
  }
}

// Whether any of a lane's sums has to be fixed.
template <class Runs, class Fix>
__device__ bool any_wanted(const Runs& runs, const Fix& fix) {
  bool wanted = false;
#pragma unroll
  for (int run = 0; run < Runs::kRuns; ++run) wanted = wanted || fix.wanted(runs.values[run]);
  return wanted;
}

// A warp's sums, where the CTA's tile, of kCta, begins at `tile` and the warp's at (warp_row, warp_col) of it.
template <class Op, Tile kCta, int kThreads, int kRowGroup, int kColGroup, int kFragmentsM, int kFragmentsN, class Fix>
__device__ void write_lanes(const typename Op::Accumulator (&sums)[kFragmentsM][kFragmentsN][4], char* s_bytes,
                            const Epilogue& epilogue, const Fix& fix, const TileCoord& tile, int warp_row, int warp_col,
                            int lane, int64_t M, int64_t N) {
  using Sum = typename Op::Accumulator;
  LaneRuns<kRowGroup, kColGroup, Sum, kFragmentsM, kFragmentsN> runs(sums);
  const fragment::Coord first = fragment::d(lane, 0);
  const TileCoord at = {tile.batch, tile.row + warp_row, tile.col + warp_col};
  if (!epilogue.plain() || any_wanted(runs, fix)) return write_runs(runs, epilogue, fix, at, first, M, N);
  const bool whole_rows = !Op::kRecomputes && !epilogue.quads_aligned && N <= kCta.n && epilogue.ld == N;
  const auto write = [&]<class Out>(Out) {
    if (whole_rows) {
      const int rows = static_cast<int>(M - tile.row < kCta.m ? M - tile.row : kCta.m);
      write_whole_rows<Out, kThreads>(runs, s_bytes, epilogue, tile, rows, warp_row, warp_col, first,
                                      static_cast<int>(N));
    } else {
      write_plain_runs<Out>(runs, epilogue, at, first, M, N);
    }
  };
  if constexpr (sizeof(typename Op::Element) == 2) {
    if (epilogue.out_dtype != DType::kF32) return write(typename Op::Element{});
  }
  write(Sum{});
}

}  // namespace jaxgemm
