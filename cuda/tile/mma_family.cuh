// What the rungs on mma.sync share: their dtypes, the choice of the Op for a problem, and the way of a tile of sums
// from shared memory into out.
#pragma once

#include <array>
#include <string>

#include "epilogue/epilogue.cuh"
#include "epilogue/recompute.cuh"
#include "epilogue/staged.cuh"
#include "launch.cuh"
#include "mma_op.cuh"
#include "scheduler.cuh"

namespace jaxgemm {

// By the size of an operand's elements.
template <int kElementBytes>
inline constexpr auto kMmaDTypes =
    std::array{DTypes{DType::kF16, DType::kF16, DType::kF16}, DTypes{DType::kF16, DType::kF16, DType::kF32},
               DTypes{DType::kBF16, DType::kBF16, DType::kBF16}, DTypes{DType::kBF16, DType::kBF16, DType::kF32}};
template <>
inline constexpr auto kMmaDTypes<4> = std::array{DTypes{DType::kF32, DType::kF32, DType::kF32}};
template <>
inline constexpr auto kMmaDTypes<1> = std::array{DTypes{DType::kS8, DType::kS8, DType::kS32}};

// Calls f.template operator()<Op>() for the problem's dtypes and precision.
template <int kElementBytes, class F>
std::string dispatch_op(const Problem& p, F&& f) {
  if constexpr (kElementBytes == 1) {
    return f.template operator()<MmaS8>();
  } else if constexpr (kElementBytes == 4) {
    return p.precision == Precision::kHighest ? f.template operator()<MmaTf32x3>() : f.template operator()<MmaTf32>();
  } else {
    return p.lhs_dtype == DType::kF16 ? f.template operator()<Mma16<__half>>()
                                      : f.template operator()<Mma16<__nv_bfloat16>>();
  }
}

// What becomes of an Op's sums.
template <class Op>
using FixOf = std::conditional_t<Op::kRecomputes, Recompute, Keep>;

// Writes a staged tile that lies inside out as a whole and is only rounded, to `Out`. No checks but `fix`: it takes a
// sixth of the time of write_tile().
template <class Out, int kThreads, class Accumulator, int kRows, int kCols, class Fix>
__device__ void write_plain_tile(const StagedTile<Accumulator, kRows, kCols>& s_out, const Epilogue& epilogue,
                                 const Fix& fix, const TileCoord& tile, int64_t N) {
  Out* g_tile =
      static_cast<Out*>(epilogue.out) + tile.batch * epilogue.batch_stride + tile.row * epilogue.ld + tile.col;
  s_out.template for_each_quad<kThreads>([&](int row, int col, auto quad) {
    Accumulator sums[4] = {quad.x, quad.y, quad.z, quad.w};
    fix(sums, tile.batch, tile.row + row, tile.col + col, N);
    round4(g_tile + row * epilogue.ld + col, sums);
  });
}

// The same of what of a staged tile lies inside out, stored with the RowPhases of its place there, where there is
// nothing to fix.
template <class Out, int kThreads, class Accumulator, int kRows, int kCols>
__device__ void write_plain_part(const StagedTile<Accumulator, kRows, kCols>& s_out, const RowPhases& phases,
                                 const Epilogue& epilogue, const TileCoord& tile, int64_t M, int64_t N) {
  const int rows = static_cast<int>(M - tile.row < kRows ? M - tile.row : kRows);
  const int cols = static_cast<int>(N - tile.col < kCols ? N - tile.col : kCols);
  Out* g_tile =
      static_cast<Out*>(epilogue.out) + tile.batch * epilogue.batch_stride + tile.row * epilogue.ld + tile.col;
  s_out.template for_each_moved_quad<kThreads>(
      phases,
      [&](int row, int col, auto quad) {
        if (row >= rows || col >= cols) return;
        const Accumulator sums[4] = {quad.x, quad.y, quad.z, quad.w};
        Out* g_quad = g_tile + row * epilogue.ld + col;
        if (col + 4 <= cols) {
          round4(g_quad, sums);
          return;
        }
#pragma unroll
        for (int i = 0; i < 3; ++i) {
          if (col + i < cols) round1(g_quad + i, sums[i]);
        }
      },
      [&](int row, int col, Accumulator sum) {
        if (row < rows && col < cols) round1(g_tile + row * epilogue.ld + col, sum);
      });
}

// Writes what of a staged tile, stored with the RowPhases of its place in out, lies inside out. All threads of the CTA
// call it.
template <class Op, int kThreads, class Accumulator, int kRows, int kCols, class Fix>
__device__ void write_tile(const StagedTile<Accumulator, kRows, kCols>& s_out, const RowPhases& phases,
                           const Epilogue& epilogue, const Fix& fix, const TileCoord& tile, int64_t M, int64_t N) {
  const bool whole = phases.all_zero() && tile.row + kRows <= M && tile.col + kCols <= N;
  // There are no registers left for still another way beside recomputing.
  const bool plain = epilogue.plain() && (whole || !Op::kRecomputes);
  if (!plain) return write_moved_tile<kThreads>(s_out, phases, epilogue, fix, tile, M, N);
  const auto write_plain = [&]<class Out>(Out*) {
    if (Op::kRecomputes || whole) {
      write_plain_tile<Out, kThreads>(s_out, epilogue, fix, tile, N);
    } else {
      write_plain_part<Out, kThreads>(s_out, phases, epilogue, tile, M, N);
    }
  };
  if constexpr (sizeof(typename Op::Element) == 2) {
    if (epilogue.out_dtype != DType::kF32) return write_plain(static_cast<typename Op::Element*>(nullptr));
  }
  write_plain(static_cast<Accumulator*>(nullptr));
}

}  // namespace jaxgemm
