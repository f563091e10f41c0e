// The K loop of Hopper, in two halves that run at the same time: a thread for each operand has TMA fill a ring of
// stages in shared memory, and warpgroups multiply what is in them with wgmma. A stage's two mbarriers hand it back and
// forth: `full` when the copies have landed, `empty` when all have read it.
//
// Operands lie in shared memory as they do in global memory, along K or, if they have 16 bits, along M or N: wgmma's
// descriptors say which. (For float32 along N see sm90_rhs_registers.cuh.)
// CTAs of a cluster compute tiles below one another. They need the same part of rhs: each loads a share of it for all.
#pragma once

#include "gemm.h"
#include "ptx/address.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/swizzled_rows.cuh"
#include "tile/taken_tiles.cuh"

namespace jaxgemm::sm90 {

inline constexpr int kWarpgroup = ptx::kWarpgroupThreads;
inline constexpr int kProducers = 2;  // threads that load: one takes longer for both operands than a small k-tile lasts

// Where a walk round the ring is. Fresh `full` barriers complete their phase of parity 0 first, and a wait for the
// opposite parity of fresh `empty` ones succeeds: see Mbarrier.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }

  __device__ void skip(int steps) {
    const int to = stage + steps;
    stage = to % kStages;
    parity ^= static_cast<uint32_t>(to / kStages) & 1;
  }
};

// A k-tile of one operand: kMn rows of lhs or columns of rhs. A row in shared memory is a k-tile long, or holds as much
// of M or N.
template <class Element, int kMn, bool kMnContiguous>
struct OperandTile {
  static constexpr int kRowElems = kRowBytes / sizeof(Element), kTileK = kRowElems;
  static constexpr int kBytes = kMn * kRowBytes;
  static constexpr ptx::Major kMajor = kMnContiguous ? ptx::Major::kMN : ptx::Major::kK;

  // Boxes of one copy: all of the tile's rows along K, or, along M or N, what a row holds, for all of K.
  static constexpr int kBoxMn = kMnContiguous ? kRowElems : kMn, kBoxBytes = kBoxMn * kRowBytes;

  // The share of one of kCtas CTAs in filling the tile, which begins at (mn, k) in memory.
  template <int kCtas>
  __device__ static void load(char* s_tile, const CUtensorMap& map, ptx::Mbarrier& full, int mn, int k, int batch,
                              int rank) {
    if constexpr (kMnContiguous) {
      static_assert(kMn % (kCtas * kBoxMn) == 0);
#pragma unroll
      for (int i = 0; i < kMn / kBoxMn / kCtas; ++i) {
        const int box = rank * (kMn / kBoxMn / kCtas) + i;
        load_box<kCtas>(s_tile + box * kBoxBytes, map, full, mn + box * kBoxMn, k, batch);
      }
    } else {
      const int first = rank * (kMn / kCtas);
      load_box<kCtas>(s_tile + first * kRowBytes, map, full, k, mn + first, batch);
    }
  }

  // Of the rows from mn on, a multiple of 64, and all of K.
  __device__ static uint64_t descriptor(const char* s_tile, int mn) {
    static_assert(sizeof(Element) == 2 || !kMnContiguous);
    constexpr ptx::MatrixLayout kLayout = {
        .leading_bytes = kMnContiguous ? kBoxBytes : 16, .stride_bytes = kAtomBytes, .swizzle = kSwizzle};
    return ptx::matrix_descriptor(ptx::shared_address(s_tile) + mn * kRowBytes, kLayout);
  }

  // From one step of wgmma along K to the next.
  static constexpr int kStepBytes = kMnContiguous ? ptx::kWgmmaK<Element> * kRowBytes : ptx::kWgmmaStepBytes;
  static_assert(kMn % 64 == 0, "64 rows follow each other in either order");

 private:
  template <int kCtas>
  __device__ static void load_box(char* s_box, const CUtensorMap& map, ptx::Mbarrier& full, int x, int y, int batch) {
    if constexpr (kCtas == 1) {
      ptx::tma_load_3d(s_box, map, full, x, y, batch);
    } else {
      ptx::tma_load_multicast_3d(s_box, map, full, x, y, batch, (1 << kCtas) - 1);
    }
  }
};

// The ring. Every k-tile is read by kReaders of the warpgroups of each of kClusterCtas CTAs. A step of the walk may
// take several of these stages: of operands that have two planes, or where Config::kTilesOfStep k-tiles go together.
template <class Config>
struct Pipeline {
  static constexpr int kStages = Config::kStages, kClusterCtas = Config::kClusterCtas;
  static constexpr int kReaders = Config::kPingPong ? 1 : Config::kConsumers;

  struct Stage {
    alignas(kAtomBytes) char lhs[Config::kCtaTile.m * kRowBytes];
    alignas(kAtomBytes) char rhs[Config::kCtaTile.n * kRowBytes];
  };
  Stage stages[kStages];
  ptx::Mbarrier full[kStages], empty[kStages];
  ptx::Mbarrier done[2];  // with a tile: each of two consumers that take turns
  TakenTiles<kProducers + Config::kConsumers * kWarpgroup / 32, kClusterCtas> taken;

  // By one thread, before a barrier of the cluster. `releases`: how many times each reader releases a stage.
  __device__ void init(int releases) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(full[stage], kProducers);
      ptx::mbarrier_init(empty[stage], static_cast<uint32_t>(releases * kReaders * kClusterCtas));
    }
    if constexpr (Config::kPingPong) {
      for (ptx::Mbarrier& barrier : done) ptx::mbarrier_init(barrier, kWarpgroup / 32);
    }
    ptx::fence_mbarrier_init();
  }

  // Waits until all warps of the other consumer have seen all k-tiles of the tile before this one's n-th. A wait for a
  // k-tile would else be taken for one that the ring had there a round earlier: mbarriers only tell odd phases from
  // even ones.
  __device__ void wait_for_turn(int consumer, int n) {
    ptx::mbarrier_wait(done[consumer ^ 1], static_cast<uint32_t>(consumer == 0 ? n + 1 : n) & 1);
  }
  __device__ void pass_turn(int consumer) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(done[consumer]);
  }

  // The executing warpgroup, or warp, has read the stage: one arrival at every CTA whose copies write to it.
  __device__ void release(int stage) { release_by(stage, static_cast<int>(threadIdx.x) % kWarpgroup); }
  __device__ void release_by_warp(int stage) { release_by(stage, static_cast<int>(threadIdx.x) % 32); }

 private:
  __device__ void release_by(int stage, int thread) {
    if constexpr (kClusterCtas == 1) {
      if (thread == 0) ptx::mbarrier_arrive(empty[stage]);
    } else {
      if (thread < kClusterCtas) ptx::mbarrier_arrive_remote(empty[stage], thread);
    }
  }
};

// How many rows of lhs a copy brings: those of a tile, or, unless they lie along M, as many as there are. TMA could
// fill the others with zeros, but takes longer for them than for rows that it loads.
template <class Config>
int copied_lhs_rows(const Problem& p, bool along_m) {
  const int64_t rows = (p.M + kAtomRows - 1) / kAtomRows * kAtomRows;
  return along_m || rows > Config::kCtaTile.m ? Config::kCtaTile.m : static_cast<int>(rows);
}

template <class Sum, int kBlocks, int kRegisters>
__device__ void clear(Sum (&sums)[kBlocks][kRegisters]) {
#pragma unroll
  for (auto& block : sums) {
#pragma unroll
    for (Sum& sum : block) sum = 0;
  }
}

// What is multiplied and how, for one layout.
template <class Config, class Op, bool kLhsTransposed, bool kRhsTransposed>
struct Mainloop {
  static constexpr Tile kCta = Config::kCtaTile;
  static constexpr int kPlanes = Op::kPlanes;
  using Lhs = OperandTile<typename Op::Lhs, kCta.m, kLhsTransposed>;
  using Rhs = OperandTile<typename Op::Rhs, kCta.n, !kRhsTransposed>;

  // A step: k-tiles that are waited for once. Between two steps of a small tile the tensor cores run dry.
  static constexpr int kTilesOfStep = kPlanes == 1 ? Config::kTilesOfStep : 1, kStagesOfStep = kTilesOfStep * kPlanes;
  static_assert(kCta.k == Lhs::kTileK && Config::kStages % kStagesOfStep == 0);

  static constexpr bool kTransposesSums = false;
  static constexpr bool kWritesPlain = true;  // as Way::kPlain, a kernel of its own
  static constexpr int kReleases = 1;         // of a stage by a reader

  using StageRing = Ring<Config::kStages / kStagesOfStep>;
  using Stage = typename Pipeline<Config>::Stage;

  // A consumer warpgroup's rows are kBlocks times those of wgmma: its share of a tile, or all of it.
  static constexpr int kBlocks = kCta.m / Pipeline<Config>::kReaders / ptx::kWgmmaM;
  using Sums = typename Op::Sum[kBlocks][kCta.n / 2];

  // Where a tile begins in an operand, and how many k-tiles of it there are. Matrices that all batches share are
  // batch 0. A second plane begins plane_k after the first.
  struct Work {
    int mn, k, k_tiles, batch, plane_k;
  };

  // The rows from first_row on, which no copy will bring. By all consumers, one of them `thread`, while the first
  // copies are under way; a barrier of theirs comes before the first product.
  __device__ static void clear_lhs(Pipeline<Config>& s_pipeline, int first_row, int thread) {
    constexpr int kChunks = Lhs::kBytes / ptx::kChunkBytes, kChunksOfRow = kRowBytes / ptx::kChunkBytes;
    for (auto& stage : s_pipeline.stages) {
      for (int at = first_row * kChunksOfRow + thread; at < kChunks; at += Config::kConsumers * kWarpgroup) {
        reinterpret_cast<uint4*>(stage.lhs)[at] = make_uint4(0, 0, 0, 0);
      }
    }
    ptx::fence_proxy_async();
  }

  // By one thread of the CTA of this rank for lhs, and one for rhs. Of the last step there may be k-tiles left over:
  // they lie behind the end of K, where TMA finds zeros, as no other part of K begins within a step (Schedule).
  template <bool kLhs>
  __device__ static void produce(Pipeline<Config>& s_pipeline, StageRing& ring, const CUtensorMap& map,
                                 const Work& work, int bytes, int rank) {
#pragma unroll 1
    for (int i = 0; i < work.k_tiles; i += kTilesOfStep) {
      ptx::Mbarrier& full = s_pipeline.full[ring.stage];
      ptx::mbarrier_wait(s_pipeline.empty[ring.stage], ring.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, static_cast<uint32_t>(kStagesOfStep * bytes));
#pragma unroll
      for (int tile = 0; tile < kTilesOfStep; ++tile) {
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
          Stage& stage = s_pipeline.stages[ring.stage * kStagesOfStep + tile + plane];
          const int k = work.k + (i + tile) * kCta.k + plane * work.plane_k;
          if constexpr (kLhs) {
            Lhs::template load<1>(stage.lhs, map, full, work.mn, k, work.batch, 0);
          } else {
            Rhs::template load<Config::kClusterCtas>(stage.rhs, map, full, work.mn, k, work.batch, rank);
          }
        }
      }
      ring.advance();
    }
  }

  // What a walk over so many k-tiles takes of the ring.
  __device__ static int steps(int k_tiles) { return (k_tiles + kTilesOfStep - 1) / kTilesOfStep; }

  // sums = the rows of lhs from first_row on * rhs. One k-tile's wgmmas are in flight while the next one is waited for.
  // Calls all_issued() when the last ones are on their way.
  template <class AllIssued>
  __device__ static void multiply(Sums& sums, Pipeline<Config>& s_pipeline, StageRing& ring, int first_row, int k_tiles,
                                  AllIssued&& all_issued) {
    clear(sums);
    static_assert(Op::kKTilesApart % kTilesOfStep == 0);
    if constexpr (Op::kKTilesApart > 0) {
      multiply_apart(sums, s_pipeline, ring, first_row, k_tiles);
      return all_issued();
    }
    int previous = 0;  // stage
#pragma unroll 1
    for (int i = 0; i < k_tiles; i += kTilesOfStep) {
      ptx::mbarrier_wait(s_pipeline.full[ring.stage], ring.parity);
      issue(sums, s_pipeline.stages + ring.stage * kStagesOfStep, first_row, true);
      if (i > 0) {
        ptx::wgmma_wait<1>();
        s_pipeline.release(previous);
      }
      previous = ring.stage;
      ring.advance();
    }
    all_issued();
    ptx::wgmma_wait<0>();
    if (k_tiles > 0) s_pipeline.release(previous);
    ptx::pin_registers(sums);
  }

 private:
  // While this warpgroup adds, the tensor cores work for the other one.
  __device__ static void multiply_apart(Sums& sums, Pipeline<Config>& s_pipeline, StageRing& ring, int first_row,
                                        int k_tiles) {
#pragma unroll 1
    for (int i = 0; i < k_tiles; i += Op::kKTilesApart) {
      Sums new_sums;
      int previous = 0;  // stage
#pragma unroll 1
      for (int j = i; j < k_tiles && j < i + Op::kKTilesApart; j += kTilesOfStep) {
        ptx::mbarrier_wait(s_pipeline.full[ring.stage], ring.parity);
        issue(new_sums, s_pipeline.stages + ring.stage * kStagesOfStep, first_row, j > i);
        if (j > i) {
          ptx::wgmma_wait<1>();
          s_pipeline.release(previous);
        }
        previous = ring.stage;
        ring.advance();
      }
      ptx::wgmma_wait<0>();
      s_pipeline.release(previous);
      ptx::pin_registers(new_sums);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int r = 0; r < kCta.n / 2; ++r) sums[block][r] += new_sums[block][r];
      }
    }
  }

  // Has the products of a step's k-tiles computed: added to the sums, or in their place. Of two planes the products of
  // big and small come first, and those of small and small not at all.
  __device__ static void issue(Sums& sums, const Stage* s_stages, int first_row, bool add) {
    constexpr int kProducts = kPlanes == 1 ? 1 : 3;
    ptx::wgmma_fence();
#pragma unroll
    for (int tile = 0; tile < kTilesOfStep; ++tile) {
#pragma unroll
      for (int product = kProducts - 1; product >= 0; --product) {
        const uint64_t rhs = Rhs::descriptor(s_stages[tile + product / 2].rhs, 0);
#pragma unroll
        for (int step = 0; step < kRowBytes / ptx::kWgmmaStepBytes; ++step) {
#pragma unroll
          for (int block = 0; block < kBlocks; ++block) {
            const uint64_t lhs = Lhs::descriptor(s_stages[tile + product % 2].lhs, first_row + block * ptx::kWgmmaM);
            ptx::wgmma<typename Op::Lhs, typename Op::Rhs, kCta.n, Lhs::kMajor, Rhs::kMajor>(
                sums[block], ptx::advance(lhs, step * Lhs::kStepBytes), ptx::advance(rhs, step * Rhs::kStepBytes),
                add || tile > 0 || product < kProducts - 1 || step > 0);
          }
        }
      }
    }
    ptx::wgmma_commit();
  }
};

}  // namespace jaxgemm::sm90
