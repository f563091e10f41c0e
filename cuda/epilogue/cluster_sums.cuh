// Splitting K among the CTAs of a cluster: each leaves its sums in its own shared memory, and each adds up some rows of
// all, always in the same order. What split_k.cu does with a second kernel and the workspace.
// CUDA C++ programming guide, "Distributed Shared Memory".
#pragma once

#include "epilogue/staged.cuh"
#include "ptx/cluster.cuh"
#include "ptx/wgmma.cuh"

namespace jaxgemm {

template <int kRows, int kCols>
struct ClusterSums {
  StagedSums<kRows, kCols> tile;

  // What a warpgroup has of the tile, from first_row on.
  template <class Sum, int kBlocks, int kRegisters>
  __device__ void store(const Sum (&sums)[kBlocks][kRegisters], int first_row) {
    static_assert(kRegisters == kCols / 2);
    const int warp_row = static_cast<int>(threadIdx.x) % ptx::kWarpgroupThreads / 32 * 16;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      Sum fragments[1][kCols / 8][4];
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) fragments[0][i / 4][i % 4] = sums[block][i];
      tile.of(Sum{}).template store<1, 1>(fragments, first_row + block * ptx::kWgmmaM + warp_row, 0, RowPhases());
    }
  }

  // Waits for all of the cluster, where all threads arrived before they called this, and writes this CTA's share of the
  // rows, of the sums of `ctas`, what of them lies inside out. `fix`: see recompute.cuh.
  template <int kThreads, class Sum, class Fix>
  __device__ void wait_and_write(int ctas, const Epilogue& epilogue, const Fix& fix, const TileCoord& at, int64_t M,
                                 int64_t N) {
    using Quad = typename VectorsOf<Sum>::Quad;
    constexpr int kQuadsPerRow = kCols / 4;
    const int rows = static_cast<int>(M - at.row < kRows ? M - at.row : kRows);
    static_assert(kMostClusterSplits == 3);  // divisions by numbers that the compiler knows are multiplications
    const int share = ctas == 2 ? (rows + 1) / 2 : (rows + 2) / 3, first = ptx::cluster_ctarank() * share;
    const auto& own = tile.of(Sum{});
    ptx::cluster_wait();
    for (int i = static_cast<int>(threadIdx.x); i < (share < rows - first ? share : rows - first) * kQuadsPerRow;
         i += kThreads) {
      const int row = first + i / kQuadsPerRow, col = i % kQuadsPerRow * 4;
      if (at.col + col >= N) continue;
      const auto* s_quad = reinterpret_cast<const Quad*>(own.elements + row * own.kStride + col);
      Quad quads[kMostClusterSplits] = {};
#pragma unroll
      for (int cta = 0; cta < kMostClusterSplits; ++cta) {  // all are under way before the first is waited for
        if (cta < ctas) quads[cta] = *ptx::map_shared_rank(s_quad, cta);
      }
      Sum sum[4] = {};
#pragma unroll
      for (const Quad& quad : quads) {
        sum[0] += quad.x;
        sum[1] += quad.y;
        sum[2] += quad.z;
        sum[3] += quad.w;
      }
      fix(sum, at.batch, at.row + row, at.col + col, N);
      epilogue.store4(at.batch, at.row + row, at.col + col, N, sum);
    }
  }
};

}  // namespace jaxgemm
