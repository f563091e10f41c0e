// The way out of sums of which each thread holds four neighbouring columns: from registers, 16 bytes at once.
#pragma once

#include "epilogue/epilogue.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {

// Sums as they are, of rows < M and columns < N, to rows of out that hold whole aligned quads.
template <class Out, class Loop>
__device__ void store_quads(const typename Loop::Sums& sums, const Epilogue& epilogue, const TileCoord& tile,
                            int first_col, int64_t M, int64_t N) {
  Out* g_tile =
      static_cast<Out*>(epilogue.out) + tile.batch * epilogue.batch_stride + tile.row * epilogue.ld + tile.col;
  Loop::for_each_quad(sums, first_col, [&](int row, int col, const typename Loop::Quad& quad) {
    if (tile.row + row < M && tile.col + col < N) {
      round4(g_tile + row * epilogue.ld + col, {quad.x, quad.y, quad.z, quad.w});
    }
  });
}

// Of Loop's sums, of the columns from first_col on, what lies inside out, where the CTA's tile begins at `tile`.
// kPlain: out is float32 and its rows hold whole aligned quads, and there is nothing to do but to store them.
template <bool kPlain, class Loop>
__device__ void write_quads(typename Loop::Sums& sums, const Epilogue& epilogue, const TileCoord& tile, int first_col,
                            int64_t M, int64_t N) {
  using Sum = typename Loop::Sum;
  if constexpr (kPlain) {
    store_quads<Sum, Loop>(sums, epilogue, tile, first_col, M, N);
    return;
  }
  if constexpr (!Loop::kWritesPlain) {
    if (epilogue.plain() && epilogue.quads_aligned && N % 4 == 0) {
      if constexpr (std::is_same_v<Sum, int32_t>) {
        store_quads<int32_t, Loop>(sums, epilogue, tile, first_col, M, N);
      } else if (epilogue.out_dtype == DType::kF32) {
        store_quads<float, Loop>(sums, epilogue, tile, first_col, M, N);
      } else if (epilogue.out_dtype == DType::kF16) {
        store_quads<__half, Loop>(sums, epilogue, tile, first_col, M, N);
      } else {
        store_quads<__nv_bfloat16, Loop>(sums, epilogue, tile, first_col, M, N);
      }
      return;
    }
  }
  Loop::for_each_quad_in_turn(sums, first_col, [&](int row, int col, const typename Loop::Quad& quad) {
    if (tile.row + row >= M || tile.col + col >= N) return;
    epilogue.store4(tile.batch, tile.row + row, tile.col + col, N, {quad.x, quad.y, quad.z, quad.w});
  });
}

}  // namespace jaxgemm
