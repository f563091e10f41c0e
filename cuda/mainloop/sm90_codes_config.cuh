// The tile of int4_wgmma: its warpgroups, and the shared memory that they need (kernels/int4_wgmma.cu).
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <type_traits>

#include "epilogue/gathered_sums.cuh"
#include "epilogue/parked_sums.cuh"
#include "epilogue/swapped_halves.cuh"
#include "epilogue/turned_sums.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"
#include "tile/packed.cuh"

namespace jaxgemm::sm90 {

// CONSUMERS warpgroups have BLOCKS times 64 columns each, which takes fewer instructions for each column, and more
// registers. A k-tile has HALVES times 64 rows. CTAS: as in int4_mma.
// SHARERS: so many of them have k-tiles of the same columns in turns, which are then all under way at once: of a tile
// with few tokens a k-tile takes a warpgroup more time than work.
// TURNS: a tile is one warpgroup's, which writes its sums while the other multiplies the next tile.
template <int TOKENS, int CONSUMERS, int STAGES, int CTAS = 1, int HALVES = 2, int BLOCKS = 1, int SHARERS = 1,
          bool TURNS = false>
struct TileConfig {
  static constexpr std::string_view kFamily = "int4_wgmma";
  static constexpr auto kDTypes = kMixedDTypes;
  static constexpr int kMinSm = 90, kMaxSm = 90, kBits = 4, kGroupMultiple = 32;
  static_assert(!TURNS || CONSUMERS == 2);
  static constexpr bool kTurns = TURNS, kSplitK = !TURNS, kTma = true;
  // So many sums take long to compute: it pays to let all CTAs end at the same time.
  static constexpr bool kStreamK = kSplitK && TOKENS >= 128 && CONSUMERS == 2 && SHARERS == 1;
  // And to go on with the next tile while they are stored.
  static constexpr bool kStoresTiles = kStreamK;
  static constexpr bool kSwapsHalves = kSplitK && TOKENS >= kFewestTokensOfHalves;
  static constexpr int kHalves = HALVES, kBlocks = BLOCKS, kParts = 2 * BLOCKS, kRowBytes = 128;
  // TMA takes four times as long for a row outside of the tensor as for one inside. Tiles of many tokens come in boxes:
  // one that has none of them brings those of the first box again.
  static constexpr int kBoxRows = std::min(TOKENS, 128), kBoxes = TOKENS / kBoxRows;
  static constexpr int kSharers = SHARERS;
  // A stage is always the same sharer's: who comes back to it finds the phase that follows the one it knows.
  static_assert(CONSUMERS % SHARERS == 0 && STAGES % SHARERS == 0 && (SHARERS == 1 || !TURNS));
  static constexpr int kTogether = TURNS ? 1 : CONSUMERS / SHARERS;  // warpgroups that multiply a k-tile
  static constexpr int kMostSegments = kHalves * kPackedTileK / kGroupMultiple;
  static constexpr Tile kCtaTile = {TOKENS, kTogether * BLOCKS * ptx::kWgmmaM, kHalves * kPackedTileK};
  static constexpr Tile kWarpTile = {TOKENS, BLOCKS * ptx::kWgmmaM / 4, kCtaTile.k};
  static constexpr int kStages = STAGES, kCtas = CTAS;
  // Warpgroups with many sums want more registers than a multiprocessor has for everybody: a whole warpgroup then
  // produces, and gives its own away.
  static constexpr bool kMovesRegisters = CTAS == 1 && ((CONSUMERS == 2 && SHARERS == 1) || TOKENS == 128);
  static constexpr int kProducerRegisters = CONSUMERS > 2 ? 32 : 40, kConsumerRegisters = CONSUMERS > 2 ? 112 : 232;
  static constexpr int kConsumerThreads = CONSUMERS * ptx::kWarpgroupThreads;
  static constexpr int kTileThreads = kTogether * ptx::kWarpgroupThreads;  // who has a tile's sums in the end
  // Warps whose k-tiles are brought in turns: sharers are faster than one that issues all copies.
  static constexpr int kProducers = SHARERS > 1 ? 2 : 1;
  static constexpr int kThreads =
      kConsumerThreads + (kMovesRegisters ? ptx::kWarpgroupThreads : kProducers * kWarpSize);
  static constexpr int kRegisters = 65536;  // of a multiprocessor
  // What is taken has been given back: the CTA has no more than it began with.
  static_assert(!kMovesRegisters || CONSUMERS * kConsumerRegisters + kProducerRegisters <=
                                        (CONSUMERS + 1) * (kRegisters / kThreads / 8 * 8));

  // Named barriers, after that of ParkedSums: the pipeline's barriers are initialised, for all and for who stores
  // tiles; the first of StoredTiles; where no tiles are stored, those of GatheredSums, and for the producers that
  // initialise nothing. At each, synccheck wants one instruction that waits.
  static constexpr int kReady = 2, kStorerReady = 3, kStored = 4, kLeft = 3, kTaken = 4, kProducersReady = 5;

  struct Stage {
    alignas(1024) char tokens[kHalves][TOKENS * kRowBytes];
    alignas(128) char codes[kCtaTile.n / kPackedTileN][kHalves * kPackedTileBytes];
    alignas(128) uint16_t scales[kMostSegments][kCtaTile.n];
    alignas(128) uint8_t zeros[kMostSegments][kCtaTile.n];
  };
  struct Ring {
    alignas(8) ptx::Mbarrier full[STAGES], empty[STAGES];
  };
  struct TurnsRing : Ring {
    ptx::Mbarrier seen[CONSUMERS];  // all k-tiles of a tile, by the warpgroup whose turn it was
  };
  struct StreamRing : Ring {
    ptx::Mbarrier ranked;
    int rank;
  };
  using Pipeline = std::conditional_t<TURNS, TurnsRing, std::conditional_t<kStreamK, StreamRing, Ring>>;
  struct SharedStorage {
    union {
      Stage stages[STAGES];
      // When the CTA has nothing more to multiply:
      SumRows<kCtaTile.m, kCtaTile.n> sums;
      LeftSums<TOKENS * BLOCKS / 16, kTileThreads> left;
    };
    [[no_unique_address]] GatheredSums<SHARERS, TOKENS * BLOCKS / 8, kTileThreads, kLeft, kTaken> gathered;
    TurnedTile turned[kConsumerThreads / kWarpSize];
    Pipeline pipeline;
  };
};

}  // namespace jaxgemm::sm90
