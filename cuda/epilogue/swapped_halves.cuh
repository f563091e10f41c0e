// The sums of a tile whose K two CTAs of a cluster share, if neither has another tile: each leaves those of half of the
// tokens for the other one, adds what that left to the half it kept, which stays in registers, and writes it.
// CUDA C++ programming guide, "Distributed Shared Memory".
#pragma once

#include "epilogue/epilogue.cuh"
#include "epilogue/turned_sums.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {

// What a CTA leaves: quads of registers, by thread.
template <int kQuads, int kThreads>
struct LeftSums {
  float4 quads[kQuads][kThreads];
};

template <class Config, class T>
class SwappedHalves {
  static constexpr int kTokens = Config::kCtaTile.m / 2, kRegisters = kTokens / 2, kBlocks = Config::kBlocks;
  using Left = LeftSums<kBlocks * kRegisters / 4, Config::kTileThreads>;

 public:
  // By the consumers of both CTAs, rank 0 and 1; `tile` is the warpgroup's. s_left may lie where the stages do. The
  // cluster's other threads call cluster_sync() once.
  __device__ static void write(const float (&sums)[kBlocks][2 * kRegisters], Left& s_left, TurnedTile& s_tile, int rank,
                               const Epilogue& epilogue, TileCoord tile, int64_t M, int64_t N) {
    float kept[kBlocks][kRegisters];
    ptx::barrier_sync(1, Config::kTileThreads);  // all have read the stages
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kRegisters; i += 4) {
        float left[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float first = sums[block][i + j], second = sums[block][kRegisters + i + j];
          kept[block][i + j] = rank == 0 ? first : second;
          left[j] = rank == 0 ? second : first;
        }
        s_left.quads[(block * kRegisters + i) / 4][threadIdx.x] = make_float4(left[0], left[1], left[2], left[3]);
      }
    }
    ptx::cluster_sync();
    const Left& others = *ptx::map_shared_rank(&s_left, rank ^ 1);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kRegisters; i += 4) {
        const float4 quad = others.quads[(block * kRegisters + i) / 4][threadIdx.x];
        kept[block][i] += quad.x;
        kept[block][i + 1] += quad.y;
        kept[block][i + 2] += quad.z;
        kept[block][i + 3] += quad.w;
      }
    }
    tile.row += rank * kTokens;
    write_blocks<T>(kept, s_tile, epilogue, tile, M, N);
  }
};

}  // namespace jaxgemm
