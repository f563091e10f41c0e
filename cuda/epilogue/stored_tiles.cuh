// The way of a tile of many sums out of wgmma's accumulators, by TMA, for operands that have changed places: the
// consumers lay the tile down, turned and rounded, where the tokens of its last k-tile were, and go on with the next
// tile. A warp that has nothing else to do has TMA store it, and then gives the stage back to the producer.
#pragma once

#include "epilogue/turned_sums.cuh"
#include "mainloop/sm90_codes.cuh"
#include "ptx/barrier.cuh"
#include "ptx/tma.cuh"
#include "tile/cluster_share.cuh"

namespace jaxgemm {

// kFirstBarrier: of one named barrier and one more for each stage.
template <class Config, int kFirstBarrier>
class StoredTiles {
  static constexpr int kConsumers = Config::kConsumerThreads, kAllRead = kFirstBarrier, kLaidDown = kFirstBarrier + 1;
  static constexpr int kWarpgroupCols = ptx::kWgmmaM;  // as many of 16 bits as the tokens' rows have bytes for
  static_assert(kWarpgroupCols * 2 == Config::kRowBytes && Config::kHalves == Config::kTogether && Config::kBlocks == 1,
                "each warpgroup's columns fit where half of the tokens were");
  static_assert(kLaidDown + Config::kStages <= 16, "PTX has so many named barriers");

 public:
  // By all consumers: of a stage that is not released. What the barrier of this stage was last used for is over, for
  // the stage has been filled again since.
  template <class T, int kRegisters>
  __device__ static void lay_down(const TurnedSums<T, kRegisters>& turned, float (&sums)[kRegisters],
                                  typename Config::Stage& stage, int index, int in_tile) {
    ptx::barrier_sync(kAllRead, kConsumers);
    turned.lay_down(sums, stage.tokens[in_tile]);
    ptx::fence_proxy_async();
    ptx::barrier_arrive(kLaidDown + index, kConsumers + kWarpSize);
  }

  // By one warp: what the CTA's consumers lay down. rank(): as ClusterShare::for_each() asks for it.
  template <bool kStream, class Storage, class Rank>
  __device__ static void store_all(const CUtensorMap& map, const ClusterShare& share, Storage& smem, int64_t M,
                                   Rank&& rank) {
    sm90::CodesRing ring;
    const auto store_part = [&](const ClusterShare::Part& part) {
      ring.skip(part.count, Config::kStages);
      const int index = ring.last(Config::kStages);
      if (part.first) store(map, smem.stages[index], index, smem.pipeline.empty[index], share.grid.tile(part.tile), M);
    };
    share.for_each<kStream>(store_part, rank);
  }

 private:
  __device__ static void store(const CUtensorMap& map, const typename Config::Stage& stage, int index,
                               ptx::Mbarrier& empty, const TileCoord& tile, int64_t M) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    ptx::barrier_sync(kLaidDown + index, kConsumers + kWarpSize);
    if (lane == 0) {
      const int batch = static_cast<int>(tile.batch), row = static_cast<int>(tile.row),
                col = static_cast<int>(tile.col);
#pragma unroll
      for (int part = 0; part < Config::kTogether; ++part) {
#pragma unroll
        for (int first = 0; first < Config::kCtaTile.m; first += Config::kBoxRows) {
          if (row + first >= M) break;
          ptx::tma_store_3d(map, stage.tokens[part] + first * Config::kRowBytes, col + part * kWarpgroupCols,
                            row + first, batch);
        }
      }
      ptx::tma_commit_group();
      ptx::tma_wait_group_read<0>();
    }
    __syncwarp();
    if (lane < kConsumers / kWarpSize) ptx::mbarrier_arrive(empty);  // in place of the consumers' warps
  }
};

}  // namespace jaxgemm
