// The way out of sums of which each thread holds four neighbouring columns: from registers, 16 bytes at once.
#pragma once

#include "epilogue/epilogue.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {

// Of Loop's sums, of the columns from first_col on, what lies inside out, where the CTA's tile begins at `tile`.
// kPlain: out is float32 and its rows hold whole aligned quads, and there is nothing to do but to store them.
template <bool kPlain, class Loop>
__device__ void write_quads(typename Loop::Sums& sums, const Epilogue& epilogue, const TileCoord& tile, int first_col,
                            int64_t M, int64_t N) {
  const auto inside = [&](int row, int col) { return tile.row + row < M && tile.col + col < N; };
  if constexpr (kPlain) {
    auto* g_tile =
        static_cast<float*>(epilogue.out) + tile.batch * epilogue.batch_stride + tile.row * epilogue.ld + tile.col;
    Loop::for_each_quad(sums, first_col, [&](int row, int col, const float4& quad) {
      if (inside(row, col)) *reinterpret_cast<float4*>(g_tile + row * epilogue.ld + col) = quad;
    });
  } else {
    Loop::for_each_quad_in_turn(sums, first_col, [&](int row, int col, const auto& quad) {
      if (!inside(row, col)) return;
      epilogue.store4(tile.batch, tile.row + row, tile.col + col, N, {quad.x, quad.y, quad.z, quad.w});
    });
  }
}

}  // namespace jaxgemm
