// The way of a warp's mma.sync accumulators from its lanes' registers to out, each lane its own neighbours along a row:
// nothing is exchanged, no other warp waited for, and stores are short. For so few sums that this takes less.
#pragma once

#include "epilogue/epilogue.cuh"
#include "tile/fragment.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {

// Of one lane, the accumulators of a warp tile whose rows (columns) are dealt in groups (fragment::dealt()): columns
// one by one, or in twos. They are runs of neighbours, each at a multiple of its length.
template <int kRowGroup, int kColGroup, class Accumulator, int kFragmentsM, int kFragmentsN>
struct LaneRuns {
  static_assert(kColGroup <= 2 && kFragmentsN % kColGroup == 0);
  static constexpr int kRunsOfRow = kFragmentsN / kColGroup, kRuns = 2 * kFragmentsM * kRunsOfRow;
  static constexpr int kElems = 2 * kColGroup;

  __device__ static int row(int run, const fragment::Coord& first) {
    return fragment::dealt<kRowGroup>(run / kRunsOfRow, first.row);
  }
  __device__ static int col(int run, const fragment::Coord& first) {
    return fragment::dealt<kColGroup>(run % kRunsOfRow * kColGroup, first.col);
  }

  Accumulator values[kRuns][4] = {};  // of which kElems are used

  __device__ explicit LaneRuns(const Accumulator (&sums)[kFragmentsM][kFragmentsN][4]) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const int slot = run / kRunsOfRow, j = run % kRunsOfRow * kColGroup;
#pragma unroll
      for (int i = 0; i < kElems; ++i) {
        values[run][i] = sums[slot / 2][j + i % kColGroup][slot % 2 * 2 + i / kColGroup];
      }
    }
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

template <class Op, int kRowGroup, int kColGroup, int kFragmentsM, int kFragmentsN, class Fix>
__device__ void write_lanes(const typename Op::Accumulator (&sums)[kFragmentsM][kFragmentsN][4],
                            const Epilogue& epilogue, const Fix& fix, const TileCoord& tile, int lane, int64_t M,
                            int64_t N) {
  using Sum = typename Op::Accumulator;
  LaneRuns<kRowGroup, kColGroup, Sum, kFragmentsM, kFragmentsN> runs(sums);
  const fragment::Coord first = fragment::d(lane, 0);
  if (!epilogue.plain() || any_wanted(runs, fix)) return write_runs(runs, epilogue, fix, tile, first, M, N);
  if constexpr (sizeof(typename Op::Element) == 2) {
    if (epilogue.out_dtype != DType::kF32) {
      return write_plain_runs<typename Op::Element>(runs, epilogue, tile, first, M, N);
    }
  }
  write_plain_runs<Sum>(runs, epilogue, tile, first, M, N);
}

}  // namespace jaxgemm
