// int4_wgmma: 4-bit weights on Hopper's tensor cores.
//
// What is new against int4_mma: one warp, or two in turns, bring tokens, packed codes, scales and zero points into a
// ring of stages by TMA, and warpgroups of consumers multiply. Again the weights are A, whose rows are columns of rhs,
// and come from registers, which is the one way into wgmma that leaves time to make numbers of codes: the fragments of
// the next rows are made while the tensor cores work on the last ones (mainloop/sm90_codes.cuh). Tokens are B, of any
// number that is a multiple of 8. CTAs stay and take tile after tile: the ring fills while sums are written
// (epilogue/turned_sums.cuh), or the next tile is multiplied while TMA stores them (epilogue/stored_tiles.cuh). Of few
// tokens several warpgroups share the k-tiles of the same columns (epilogue/gathered_sums.cuh). Where tiles are few, or
// no multiple of the CTAs, those of a cluster, or all together, have equal parts of the K of all of its tiles
// (tile/cluster_share.cuh), and add up what they have of the same one (epilogue/swapped_halves.cuh,
// epilogue/parked_sums.cuh, epilogue/streamed_sums.cuh).
//
// Source: "register-sourced" mixed-input GEMM, CUTLASS, example 55 and
// sm90_mma_tma_gmma_rs_warpspecialized_mixed_input; PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
// Instructions".
#include <algorithm>

#include "epilogue/epilogue.cuh"
#include "epilogue/gathered_sums.cuh"
#include "epilogue/parked_sums.cuh"
#include "epilogue/stored_tiles.cuh"
#include "epilogue/streamed_sums.cuh"
#include "epilogue/swapped_halves.cuh"
#include "epilogue/turned_sums.cuh"
#include "launch.cuh"
#include "mainloop/sm90_codes.cuh"
#include "mainloop/sm90_codes_config.cuh"
#include "mainloop/sm90_codes_producer.cuh"
#include "ptx/cluster.cuh"
#include "ptx/elect.cuh"
#include "ptx/global_flag.cuh"
#include "ptx/registers.cuh"
#include "ptx/shared_storage.cuh"
#include "ptx/tma.cuh"
#include "select_mixed.h"
#include "tile/cluster_share.cuh"
#include "tile/packed_boxes.h"
#include "tile/split_k.h"
#include "tile/tensor_map.h"
#include "tile/tma_operand.h"
#include "tile/zero_words.h"

namespace jaxgemm {
namespace {

constexpr int kWarpsOfGroup = ptx::kWarpgroupThreads / kWarpSize;
using sm90::TileConfig;

template <class Config>
struct Shared : Config {
  static constexpr std::string_view kSuffix = "_shared";
};

struct Config8x128 : TileConfig<8, 1, 4, 4, 2, 2> {};
struct Config8x64x128_shared : Shared<TileConfig<8, 4, 20, 1, 2, 1, 4>> {};
struct Config16x64x128 : TileConfig<16, 1, 5, 4> {};
struct Config16x64x128_shared : Shared<TileConfig<16, 4, 20, 1, 2, 1, 4>> {};
struct Config16x128x128_wide : TileConfig<16, 1, 3, 4, 2, 2> {
  static constexpr std::string_view kSuffix = "_wide";
};
struct Config16x128x128_shared : Shared<TileConfig<16, 4, 12, 1, 2, 2, 4>> {};
struct Config32x64x128 : TileConfig<32, 1, 5, 3> {};
struct Config32x64x128_shared : Shared<TileConfig<32, 4, 12, 1, 2, 1, 4>> {};
struct Config32x128x128 : TileConfig<32, 2, 6, 2> {};
struct Config32x128x128_shared : Shared<TileConfig<32, 4, 10, 1, 2, 1, 2>> {};
struct Config32x256 : TileConfig<32, 4, 8> {};
struct Config64x64 : TileConfig<64, 1, 5, 2> {};
struct Config64x128x128 : TileConfig<64, 2, 4, 2> {};
struct Config64x128x128_shared : Shared<TileConfig<64, 4, 6, 1, 2, 1, 2>> {};
struct Config64x256 : TileConfig<64, 4, 6> {};
struct Config128x64x64_shared : Shared<TileConfig<128, 2, 10, 1, 1, 1, 2>> {};
struct Config128x128 : TileConfig<128, 2, 5> {};
struct Config128x256 : TileConfig<128, 4, 8, 1, 1> {};
struct Config256x128 : TileConfig<256, 2, 3> {};
struct Config256x64 : TileConfig<256, 2, 3, 1, 2, 1, 1, true> {};

struct LoadMaps {
  CUtensorMap tokens, codes, scales, zeros;
};
struct AllMaps : LoadMaps {
  CUtensorMap out;
};
template <class Config>
using Maps = std::conditional_t<Config::kStoresTiles, AllMaps, LoadMaps>;

struct Work {
  ClusterShare share;
  Divisor by_group;
  int64_t groups, tiles_n;
  DType scale_dtype;
  bool stores;    // tiles of out, by TMA
  float* parked;  // of each CTA, the sums of a tile
};

template <class Config>
__device__ StreamedSums<Config> streamed(const Work& work) {
  return {work.parked, work.share.ctas};
}

// What the thread that took the CTA's ticket has written.
template <bool kStream, class Pipeline>
__device__ int rank_in_stream(Pipeline& pipeline) {
  if constexpr (kStream) {
    ptx::mbarrier_wait(pipeline.ranked, 0);
    return pipeline.rank;
  } else {
    return 0;
  }
}

// kSegments, kSameScales: see CodesMainloop. kStream: whether CTAs are a stream, perhaps of whole tiles alone, which
// TMA stores: others should not have to step over what it needs, as the kernel's code is not in the caches when it
// begins.
template <class Config, class T, bool kZeros, int kSegments, bool kSameScales, bool kStream>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtas)
    int4_wgmma_kernel(const __grid_constant__ Maps<Config> maps, const __grid_constant__ Work work,
                      const __grid_constant__ Epilogue epilogue, int64_t M, int64_t N) {
  using Stored = StoredTiles<Config, Config::kStored>;
  auto& smem = shared_storage<typename Config::SharedStorage>();
  auto& pipeline = smem.pipeline;

  // As the compiler sees it, the same for all lanes: what follows from it alone needs no vector registers.
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / kWarpSize, 0);
  if (warp < Config::kConsumerThreads / kWarpSize) {
    if constexpr (Config::kMovesRegisters) ptx::register_alloc<Config::kConsumerRegisters>();
    ptx::barrier_sync(Config::kReady, Config::kThreads);
    if constexpr (kStream) {
      // The CTA's ticket, which is needed later, or never: the ring's first stages take longer to come.
      if (threadIdx.x == 0 && work.share.whole < work.share.tiles) {
        pipeline.rank = work.share.rank_in_stream(ptx::take_ticket(streamed<Config>(work).ticket()));
        ptx::mbarrier_arrive(pipeline.ranked);
      }
    }
    const int warpgroup = warp / kWarpsOfGroup, in_tile = warpgroup % Config::kTogether;
    using Loop = sm90::CodesMainloop<Config, T, kZeros, kSegments, kSameScales>;
    const Loop loop(in_tile, work.scale_dtype);
    sm90::CodesRing ring;
    int turn = 0, rank = 0, brought = 0;  // the latter: k-tiles before
    const int sharer = warpgroup / Config::kTogether;
    if constexpr (Config::kSharers > 1) ring.stage = sharer;
    const bool in_halves = Config::kSwapsHalves && !kStream && work.share.in_halves();
    const auto compute = [&](const ClusterShare::Part& part) {
      if constexpr (Config::kTurns) {
        const int n = turn++;
        if (n % 2 != warpgroup) return ring.skip(part.count, Config::kStages);
        // For a k-tile nobody may wait before the ring is there: the one a round earlier has the same parity, or that
        // of the one before it.
        ptx::mbarrier_wait(pipeline.seen[warpgroup ^ 1], static_cast<uint32_t>(n / 2 + (warpgroup ^ 1)) & 1u);
      }
      typename Loop::Sums sums;
      const bool stores = Config::kStoresTiles && kStream && work.stores && part.first;
      int k_tiles = part.count;
      if constexpr (Config::kSharers > 1) {
        const auto own = [&](int all) { return (all + Config::kSharers - 1 - sharer) / Config::kSharers; };
        k_tiles = own(brought + part.count) - own(brought);
        brought += part.count;
      }
      loop.run(sums, smem, ring, k_tiles, stores, [&] {
        if constexpr (Config::kTurns) {
          if (threadIdx.x % kWarpSize == 0) ptx::mbarrier_arrive(pipeline.seen[warpgroup]);
        }
      });
      if constexpr (Config::kSharers > 1) {
        if (!smem.gathered.gather(sums, sharer, turn++)) {
          if (in_halves) ptx::cluster_sync();  // as SwappedHalves
          return;
        }
      }
      TileCoord tile = work.share.grid.tile(part.tile);
      tile.col += in_tile * Loop::kBlocks * ptx::kWgmmaM;
      if constexpr (Config::kSplitK) {
        if (!part.first || !part.last) {
          if constexpr (kStream) {
            const StreamedSums<Config> others = streamed<Config>(work);
            if (!part.first) return others.leave(sums[0], rank);
            for (int other = rank + 1; other <= work.share.last_of(part); ++other) others.add(sums[0], other);
          } else {
            if constexpr (Config::kSwapsHalves) {
              if (in_halves) {
                return SwappedHalves<Config, T>::write(sums, smem.left, smem.turned[threadIdx.x / kWarpSize],
                                                       part.first ? 0 : 1, epilogue, tile, M, N);
              }
            }
            return ParkedSums<Config>(work.share, smem.sums, work.parked).store(sums, part);
          }
        }
      }
      if constexpr (Config::kStoresTiles && kStream) {
        const int stage = ring.last(Config::kStages);
        const TurnedSums<T, Loop::kRegisters> turned(epilogue, tile, M, N);
        if (stores) return Stored::lay_down(turned, sums[0], smem.stages[stage], stage, in_tile);
      }
      write_blocks<T>(sums, smem.turned[threadIdx.x / kWarpSize], epilogue, tile, M, N);
    };
    work.share.for_each<kStream>(compute, [&] { return rank = rank_in_stream<kStream>(pipeline); });
    if constexpr (Config::kSplitK && !kStream) {
      if (work.share.ctas > 1 && !in_halves) {
        ptx::cluster_sync();
        ParkedSums<Config>(work.share, smem.sums, work.parked).add_up(epilogue, M, N);
      }
    }
  } else {  // ptxas puts this first: what begins first should not have to wait for instructions from afar
    if constexpr (Config::kMovesRegisters) ptx::register_dealloc<Config::kProducerRegisters>();
    constexpr int kProducerWarp = Config::kConsumerThreads / kWarpSize;
    const int producer = warp - kProducerWarp;
    // Where several CTAs of a multiprocessor produce, or a k-tile takes long, the loops that elect_one() saves are
    // hidden, and the kernels were 1 to 3 % faster with them.
    const auto produces = [&] {
      if constexpr (Config::kSharers > 1) return producer < Config::kProducers && ptx::elect_one();
      return threadIdx.x == Config::kConsumerThreads;
    };
    const auto asked_rank = [&] { return rank_in_stream<kStream>(pipeline); };
    if (producer == 0 && produces()) {
      for (int i = 0; i < Config::kStages; ++i) {
        ptx::mbarrier_init(pipeline.full[i], 1);
        ptx::mbarrier_init(pipeline.empty[i], Config::kTogether * kWarpsOfGroup);
      }
      if constexpr (Config::kTurns) {
        for (auto& barrier : pipeline.seen) ptx::mbarrier_init(barrier, kWarpsOfGroup);
      }
      if constexpr (kStream) ptx::mbarrier_init(pipeline.ranked, 1);
      ptx::fence_mbarrier_init();
    }
    __syncwarp();
    ptx::barrier_arrive(Config::kReady, Config::kThreads);
    if constexpr (Config::kProducers > 1) {
      if (producer == 0) ptx::barrier_arrive(Config::kProducersReady, Config::kProducers * kWarpSize);
      if (producer > 0 && producer < Config::kProducers) {
        ptx::barrier_sync(Config::kProducersReady, Config::kProducers * kWarpSize);
      }
    }
    if constexpr (kStream) {
      if (warp == kProducerWarp) ptx::barrier_arrive(Config::kStorerReady, 2 * kWarpSize);
    }
    if (produces()) {
      sm90::CodesProducer<Config, kZeros, kSegments, Maps<Config>, Work> producing(maps, work, smem, M, producer);
      const auto bring = [&](const ClusterShare::Part& part) { producing.bring(part); };
      work.share.for_each<kStream>(bring, asked_rank);
    }
    if constexpr (kStream) {
      if (warp == kProducerWarp + 1) {
        if (work.stores && threadIdx.x % kWarpSize == 0) ptx::tma_prefetch_map(maps.out);
        ptx::barrier_sync(Config::kStorerReady, 2 * kWarpSize);
        if (work.stores) Stored::template store_all<kStream>(maps.out, work.share, smem, M, asked_rank);
      }
    }
    __syncwarp();
    if (!kStream && work.share.ctas > 1) ptx::cluster_sync();
  }
  // Other CTAs may still read this one's shared memory.
  if (!kStream && work.share.ctas > 1) ptx::cluster_sync_relaxed();
}

TmaOperand tokens(const Problem& p) { return {p, true, false, 1, kPackedTileK}; }

template <class Config>
Copies copies(const Problem& p) {
  return tokens(p).copies();
}

// Of so many CTAs, what is launched at most: as many as run at the same time, if there are more tiles.
template <class Config>
int64_t planned_clusters(const Problem& p, int64_t splits) {
  const int64_t tiles = TileGrid(Config::kCtaTile, p.M, p.N).ctas(p.batch);
  return std::min(tiles, mixed_clusters(describe<Config>(), splits, planned_multiprocessors(p.sm)));
}

template <class Config>
int64_t workspace_bytes(const Problem& p) {
  const KSplit split = k_split(describe<Config>(), p);
  if (streams_k(split)) return copies<Config>(p).bytes + StreamedSums<Config>::bytes(split.splits);
  const int64_t parked = split.splits == 1 ? 0 : planned_clusters<Config>(p, split.splits) * split.splits;
  return copies<Config>(p).bytes + parked * static_cast<int64_t>(sizeof(typename ParkedSums<Config>::Rows));
}

template <class Config>
std::string launch(const GemmArgs& args) {
  GemmArgs split = args;
  Problem& p = split.problem;
  p.split = k_split(describe<Config>(), p);
  const TmaOperand operand = tokens(p);
  const void* x = args.lhs;
  char* workspace = static_cast<char*>(args.workspace);
  if (std::string error = operand.prepare(x, workspace, args.stream); !error.empty()) return error;

  constexpr Tile kTile = Config::kCtaTile;
  if (p.K == 0) p.split = {0, 1};
  const int64_t tiles_n = packed_tiles_n(p), groups = p.codes.groups(p.K), group = p.codes.group_size;
  const int segments = scaled_parts(group, p.K, kTile.k, Config::kGroupMultiple);
  Maps<Config> maps = {};
  if (p.K > 0) {
    if (std::string error =
            encode_codes_maps(maps, args, {x, operand.view(), Config::kBoxRows}, kTile, Config::kHalves, segments);
        !error.empty()) {
      return error;
    }
  }
  bool stores = false;
  if constexpr (Config::kStoresTiles) {
    int64_t at_once = 0;
    if (std::string error = multiprocessors(at_once); !error.empty()) return error;
    const bool several = TileGrid(kTile, p.M, p.N).ctas(p.batch) > at_once * Config::kCtas;  // tiles to a CTA
    stores = p.K > 0 && p.out_dtype == p.lhs_dtype && Epilogue(args).vectors_aligned &&
             (streams_k(p.split) || (p.split.splits == 1 && several));
    if (stores) {
      constexpr int kCols = Config::kRowBytes / static_cast<int>(sizeof(uint16_t));
      const TensorBox box =
          operand_box(args.out, p.out_dtype, p.out, p.batch, Config::kBoxRows, kCols, ptx::Swizzle::k128B);
      if (std::string error = encode_tensor_map(maps.out, box); !error.empty()) return error;
    }
  }
  const auto launch_as = [&]<class T, bool kZeros, int kSegments, bool kSameScales, bool kStream>() {
    const auto kernel = int4_wgmma_kernel<Config, T, kZeros, kSegments, kSameScales, kStream>;
    constexpr int kSmemBytes = describe<Config>().smem_bytes;
    const int splits = static_cast<int>(p.split.splits), cluster_ctas = kStream ? 1 : splits;
    int64_t clusters = 0, ctas = splits, whole = p.split.whole;
    if (std::string error =
            resident_clusters(clusters, cluster_ctas, kernel, Config::kThreads, kSmemBytes, kStream ? ctas : 0);
        !error.empty()) {
      return error;
    }
    if constexpr (kStream) {
      const bool shares = streams_k(p.split);
      if (!shares) whole = TileGrid(kTile, p.M, p.N).ctas(p.batch);
      ctas = std::clamp<int64_t>(clusters, 1, shares ? splits : planned_clusters<Config>(p, 1));
      clusters = 1;
      const StreamedSums<Config> sums(workspace, ctas);
      if (shares) {
        if (std::string error = zero_words(sums.ticket(), sums.words(ctas), args.stream); !error.empty()) return error;
      }
    } else {
      clusters = std::clamp<int64_t>(clusters, 1, planned_clusters<Config>(p, splits));
    }
    const Work work = {ClusterShare(kTile, p, clusters, {whole, ctas}),
                       Divisor(group),
                       groups,
                       tiles_n,
                       p.codes.scale_dtype,
                       stores,
                       reinterpret_cast<float*>(workspace)};
    return launch_clusters(cluster_ctas, kernel, clusters * ctas, Config::kThreads, kSmemBytes, args.stream, maps, work,
                           Epilogue(args), p.M, p.N);
  };
  const auto launch_for = [&]<class T, bool kZeros, int kSegments>() {
    if constexpr (Config::kStreamK) {
      if (streams_k(p.split) || stores) return launch_as.template operator()<T, kZeros, kSegments, false, true>();
    }
    if constexpr (sm90::knows_scales<Config>(kSegments)) {
      if (p.codes.scale_dtype == p.lhs_dtype) return launch_as.template operator()<T, kZeros, kSegments, true, false>();
    }
    return launch_as.template operator()<T, kZeros, kSegments, false, false>();
  };
  return dispatch_codes<Config::kMostSegments>(p, segments, launch_for);
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes<Config>, &copies<Config>};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(int4_wgmma, &kKernel<Config8x128>, &kKernel<Config8x64x128_shared>, &kKernel<Config16x64x128>,
               &kKernel<Config16x64x128_shared>, &kKernel<Config16x128x128_wide>, &kKernel<Config16x128x128_shared>,
               &kKernel<Config32x64x128>, &kKernel<Config32x64x128_shared>, &kKernel<Config32x128x128>,
               &kKernel<Config32x128x128_shared>, &kKernel<Config32x256>, &kKernel<Config64x64>,
               &kKernel<Config64x128x128>, &kKernel<Config64x128x128_shared>, &kKernel<Config64x256>,
               &kKernel<Config128x64x64_shared>, &kKernel<Config128x128>, &kKernel<Config128x256>,
               &kKernel<Config256x128>, &kKernel<Config256x64>)
