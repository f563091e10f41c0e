// The sums of a part of a tile, for the CTAs of the cluster that share it (tile/cluster_share.cuh): in shared memory,
// in the place of the stages, if the CTA has nothing more to multiply, else in the workspace. CUDA C++ programming
// guide, "Distributed Shared Memory".
#pragma once

#include "epilogue/epilogue.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/wgmma.cuh"
#include "tile/cluster_share.cuh"

namespace jaxgemm {

// A tile's sums in float32, row by row.
template <int kRows, int kCols>
struct SumRows {
  static constexpr int kStride = kCols + 4;  // 4 modulo 32: a warp's elements lie in different banks
  static constexpr int kElements = kRows * kStride;
  alignas(16) float elements[kElements];
};

template <class Config>
class ParkedSums {
 public:
  using Rows = SumRows<Config::kCtaTile.m, Config::kCtaTile.n>;

  // `s_rows` may lie where the stages do; `g_parked` is for all CTAs of the grid.
  __device__ ParkedSums(const ClusterShare& share, Rows& s_rows, float* g_parked)
      : share_(share), s_rows_(s_rows), g_parked_(g_parked), at_(share.place()) {}

  // By a warpgroup of consumers, of the executing CTA.
  template <int kRegisters>
  __device__ void store(const float (&sums)[Config::kBlocks][kRegisters], const ClusterShare::Part& part) const {
    const int end = part.begin + share_.k_tiles;
    if (at_.end_of(at_.rank) <= end) ptx::barrier_sync(1, Config::kTileThreads);  // all have read the stages
    const ptx::ElementOf first = ptx::accumulator_element(static_cast<int>(threadIdx.x) % ptx::kWarpgroupThreads, 0);
    float* to = rows(at_.rank, end) + first.col * Rows::kStride + first.row +
                static_cast<int>(threadIdx.x) / ptx::kWarpgroupThreads * Config::kBlocks * ptx::kWgmmaM;
#pragma unroll
    for (int block = 0; block < Config::kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) {
        const ptx::ElementOf element = ptx::accumulator_element(0, i);  // from any thread's first one as far
        to[element.col * Rows::kStride + block * ptx::kWgmmaM + element.row] = sums[block][i];
      }
    }
  }

  // By the consumers of all CTAs of the cluster, after all have stored: each CTA that shares a tile adds up and writes
  // some of its elements, in the order of K.
  __device__ void add_up(const Epilogue& epilogue, int64_t M, int64_t N) const {
    const int k_tiles = share_.k_tiles, first = at_.begin_of(at_.rank), end = at_.end_of(at_.rank);
    if (first >= end) return;
    const int tile = first / k_tiles, last_tile = (end - 1) / k_tiles;
    if (first % k_tiles != 0 || end < (tile + 1) * k_tiles) add_up_tile(tile, epilogue, M, N);
    if (last_tile != tile && end % k_tiles != 0) add_up_tile(last_tile, epilogue, M, N);
  }

 private:
  // Of the CTA `rank`, of the tile whose K ends at `end`.
  __device__ float* rows(int rank, int end) const {
    if (at_.end_of(rank) <= end) return ptx::map_shared_rank(s_rows_.elements, rank);
    return g_parked_ + (static_cast<int64_t>(at_.cluster) * share_.ctas + rank) * Rows::kElements;
  }

  __device__ void add_up_tile(int number, const Epilogue& epilogue, int64_t M, int64_t N) const {
    constexpr int kQuadsPerRow = Config::kCtaTile.n / 4, kQuads = Config::kCtaTile.m * kQuadsPerRow;
    // What is under way before the first is waited for: quads of a thread, and of how many CTAs.
    constexpr int kAtOnce = kQuads > 4 * Config::kConsumerThreads ? (Config::kCtaTile.m > 64 ? 4 : 2) : 1,
                  kCtas = kAtOnce > 1 ? 2 : kMostMixedClusterSplits;
    const int end = (number + 1) * share_.k_tiles, from = number * share_.k_tiles / at_.share,
              to = (end - 1) / at_.share;  // ranks
    const TileCoord tile = share_.grid.tile(at_.cluster + number * share_.clusters);
    const int step = Config::kConsumerThreads * (to - from + 1);
    const auto col_of = [](int i) { return i % kQuadsPerRow * 4; };
    const auto exists = [&](int i) {
      return i < kQuads && tile.row + i / kQuadsPerRow < M && tile.col + col_of(i) < N;
    };
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x) + (at_.rank - from) * Config::kConsumerThreads; first < kQuads;
         first += kAtOnce * step) {
      float sum[kAtOnce][4] = {};
#pragma unroll 1
      for (int rank = from; rank <= to; rank += kCtas) {
        float4 quads[kCtas][kAtOnce] = {};
#pragma unroll
        for (int j = 0; j < kCtas; ++j) {
          if (rank + j > to) continue;
          const float* part = rows(rank + j, end);
#pragma unroll
          for (int q = 0; q < kAtOnce; ++q) {
            const int i = first + q * step;
            if (!exists(i)) continue;
            quads[j][q] = *reinterpret_cast<const float4*>(part + i / kQuadsPerRow * Rows::kStride + col_of(i));
          }
        }
#pragma unroll
        for (int j = 0; j < kCtas; ++j) {
#pragma unroll
          for (int q = 0; q < kAtOnce; ++q) {
            sum[q][0] += quads[j][q].x;
            sum[q][1] += quads[j][q].y;
            sum[q][2] += quads[j][q].z;
            sum[q][3] += quads[j][q].w;
          }
        }
      }
#pragma unroll 1
      for (int i = first; i < first + kAtOnce * step; i += step) {  // in turns: the code is long
        if (exists(i)) epilogue.store4(tile.batch, tile.row + i / kQuadsPerRow, tile.col + col_of(i), N, sum[0]);
#pragma unroll
        for (int q = 1; q < kAtOnce; ++q) {
#pragma unroll
          for (int x = 0; x < 4; ++x) sum[q - 1][x] = sum[q][x];
        }
      }
    }
  }

  const ClusterShare& share_;
  Rows& s_rows_;
  float* g_parked_;
  const ClusterShare::Place at_;
};

}  // namespace jaxgemm
