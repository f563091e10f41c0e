// What fills the ring that CodesMainloop (mainloop/sm90_codes.cuh) empties: a thread, or several in turns, by TMA.
#pragma once

#include <cstdint>

#include "mainloop/sm90_codes.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "tile/cluster_share.cuh"
#include "tile/packed.cuh"

namespace jaxgemm::sm90 {

// Work: the kernel's, with the share of a CTA, `by_group`, which divides by rows of a group, `groups` of a matrix, and
// `tiles_n`, its packed tiles along N.
template <class Config, bool kZeros, int kSegments, class Maps, class Work>
class CodesProducer {
 public:
  // `number`: of the producer, among Config::kProducers.
  __device__ CodesProducer(const Maps& maps, const Work& work, typename Config::SharedStorage& smem, int64_t M,
                           int number)
      : maps_(maps), work_(work), smem_(smem), M_(M) {
    if constexpr (Config::kProducers > 1) ring_.stage = next_ = number;
  }

  // The k-tiles of a part of a tile, those that are this producer's.
  __device__ void bring(const ClusterShare::Part& part) {
    const TileCoord tile = work_.share.grid.tile(part.tile);
    const int batch = static_cast<int>(tile.batch), row = static_cast<int>(tile.row), col = static_cast<int>(tile.col);
    const int tile_n = static_cast<int>(tile.batch * work_.tiles_n) + col / kPackedTileN;
    const int first_group = static_cast<int>(tile.batch * work_.groups);
    int i = next_;
#pragma unroll 1
    for (; i < part.count; i += Config::kProducers) {
      const int k = (part.k_tile + i) * Config::kCtaTile.k;
      auto& stage = smem_.stages[ring_.stage];
      auto& full = smem_.pipeline.full[ring_.stage];
      ptx::mbarrier_wait(smem_.pipeline.empty[ring_.stage], ring_.parity ^ 1u);
      ptx::mbarrier_arrive_expect_tx(full, kBytes);
      const int group = first_group + static_cast<int>(work_.by_group.divide(static_cast<unsigned>(k)).quotient);
      constexpr int kWordsOfTile = kPackedTileBytes / sizeof(int32_t);
      ptx::tma_load_2d(stage.codes, maps_.codes, full, k / kPackedTileK * kWordsOfTile, tile_n);
      ptx::tma_load_2d(stage.scales, maps_.scales, full, col, group);
      if constexpr (kZeros) ptx::tma_load_2d(stage.zeros, maps_.zeros, full, col, group);
#pragma unroll
      for (int half = 0; half < Config::kHalves; ++half) {
#pragma unroll
        for (int box = 0; box < Config::kBoxes; ++box) {
          const int first = box * Config::kBoxRows;
          ptx::tma_load_3d(stage.tokens[half] + first * Config::kRowBytes, maps_.tokens, full, k + half * kPackedTileK,
                           row + first < M_ ? row + first : row, batch);
        }
      }
      ring_.template advance<Config::kProducers>(Config::kStages);
    }
    if constexpr (Config::kProducers > 1) next_ = i - part.count;
  }

 private:
  static constexpr uint32_t kParameters = kSegments * Config::kCtaTile.n;
  static constexpr uint32_t kBytes = sizeof(Config::Stage::tokens) + sizeof(Config::Stage::codes) +
                                     kParameters * (sizeof(uint16_t) + (kZeros ? sizeof(uint8_t) : 0));
  const Maps& maps_;
  const Work& work_;
  typename Config::SharedStorage& smem_;
  const int64_t M_;
  // A stage is always the same producer's, as it is the same sharer's.
  static_assert(Config::kStages % Config::kProducers == 0);
  int next_ = 0;  // its first k-tile of the next part
  CodesRing ring_;
};

}  // namespace jaxgemm::sm90
