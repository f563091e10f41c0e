// wgmma: Hopper's own instructions, and CTAs that stay.
//
// What is new against mma_multistage: operands go from shared memory into the tensor cores without passing through
// registers, multiplied by four warps together (wgmma); one thread's instruction copies a whole tile (TMA). So threads
// have roles: one warp loads, two warpgroups multiply and write, and mbarriers are all that they share
// (mainloop/sm90_tma_wgmma.cuh). A CTA stays on its multiprocessor and takes tile after tile: the loads of the next one
// run while this one is written (epilogue/tma_out.cuh). CTAs of a cluster share what they load of rhs; or, where there
// are few tiles, or few are left over, K, and add up their sums through each other's shared memory
// (epilogue/cluster_sums.cuh).
//
// TMA needs rows that begin at multiples of 16 bytes, and wgmma K contiguous unless elements have 16 bits: other
// operands are first copied into the workspace (tile/tma_operand.h). Of float32 and of bytes rhs need not be: the sums
// are then those of out transposed, and rhs passes through registers (mainloop/sm90_rhs_registers.cuh).
//
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"; CUTLASS, "Efficient GEMM in
// CUDA", section "Hopper Warp Specialization".
#include <algorithm>

#include "epilogue/cluster_sums.cuh"
#include "epilogue/quads_out.cuh"
#include "epilogue/sums_out.cuh"
#include "epilogue/tma_out.cuh"
#include "launch.cuh"
#include "mainloop/sm90_rhs_registers.cuh"
#include "mainloop/sm90_tma_wgmma.cuh"
#include "ptx/pin.cuh"
#include "ptx/registers.cuh"
#include "ptx/shared_storage.cuh"
#include "tile/sm90_schedule.cuh"
#include "tile/split_k.h"
#include "tile/tensor_map.h"
#include "tile/wgmma_op.cuh"
#include "tile/zero_words.h"

namespace jaxgemm {
namespace {

using sm90::kWarpgroup, sm90::Operands, sm90::Schedule, sm90::Shape, sm90::Way;

constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

// The rows of a tile are dealt to CONSUMERS warpgroups; or, if they play PING_PONG, each has a tile of its own, and
// writes it while the other multiplies. CLUSTER_CTAS CTAs compute tiles below one another. FP8: not only integers, of
// elements of one byte.
template <int CTA_M, int CTA_N, int ELEMENT_BYTES, int CONSUMERS, bool PING_PONG, int STAGES, int CLUSTER_CTAS,
          bool FP8 = false>
struct TileConfig {
  static constexpr std::string_view kFamily = "wgmma";
  static constexpr auto kDTypes = sm90::dtypes_of<ELEMENT_BYTES, FP8>();
  static constexpr int kMinSm = 90, kMaxSm = 90;
  static constexpr int kTileK = sm90::kRowBytes / ELEMENT_BYTES;
  static constexpr Tile kCtaTile = {CTA_M, CTA_N, kTileK},
                        kWarpTile = {CTA_M / (PING_PONG ? 1 : CONSUMERS) / 4, CTA_N, kTileK};
  static constexpr bool kTma = true, kTf32 = ELEMENT_BYTES == 4, kPingPong = PING_PONG;
  // Sums apart need as many registers again; and beside still more sums there are none for what parts of K need, nor
  // for a way out in runs (tile/run_of_rows.h).
  static constexpr bool kHighest = kWarpTile.m * kWarpTile.n <= 16 * 128,
                        kSplitK = kWarpTile.m * kWarpTile.n <= 32 * 128;
  static constexpr int kConsumers = CONSUMERS, kStages = STAGES, kClusterCtas = CLUSTER_CTAS;
  // Where it lies along N, though wgmma wants it along K: so many columns to a consumer that all of a row in shared
  // memory is read by the same warps.
  static constexpr bool kRhsInRegisters = ELEMENT_BYTES == 4   ? CTA_N == CONSUMERS * sm90::kRowBytes
                                          : ELEMENT_BYTES == 1 ? CTA_N % sm90::kRowBytes == 0
                                                               : false;
  static constexpr int kTilesOfStep = CONSUMERS == 1 && CTA_N == 64 ? 2 : 1;
  static constexpr int kThreads = (1 + CONSUMERS) * kWarpgroup;
};

template <class Config>
struct Storage {
  union {
    sm90::Pipeline<Config> pipeline;
    ClusterSums<Config::kCtaTile.m, Config::kCtaTile.n> sums;  // over the stages, when all k-tiles have been read
  };
  sm90::OutStaging out[Config::kConsumers];
};

struct Config64x64x64 : TileConfig<64, 64, 2, 1, false, 12, 1> {
  using SharedStorage = Storage<Config64x64x64>;
};
struct Config64x128x64 : TileConfig<64, 128, 2, 1, false, 8, 1> {
  using SharedStorage = Storage<Config64x128x64>;
};
struct Config64x128x64_pairs : TileConfig<64, 128, 2, 1, false, 8, 2> {  // where copying rows is what takes time
  static constexpr std::string_view kSuffix = "_pairs";
  using SharedStorage = Storage<Config64x128x64_pairs>;
};
struct Config128x128x64 : TileConfig<128, 128, 2, 2, true, 6, 1> {
  using SharedStorage = Storage<Config128x128x64>;
};
struct Config128x192x64 : TileConfig<128, 192, 2, 2, true, 4, 1> {
  using SharedStorage = Storage<Config128x192x64>;
};
struct Config64x256x64 : TileConfig<64, 256, 2, 1, false, 5, 1> {
  using SharedStorage = Storage<Config64x256x64>;
};
struct Config64x256x64_turns : TileConfig<64, 256, 2, 2, true, 4, 1> {  // where writing rows is what takes time
  static constexpr std::string_view kSuffix = "_turns";
  using SharedStorage = Storage<Config64x256x64_turns>;
};
struct Config128x256x64 : TileConfig<128, 256, 2, 2, false, 4, 1> {
  using SharedStorage = Storage<Config128x256x64>;
};
struct Config128x256x64_pairs : TileConfig<128, 256, 2, 2, false, 4, 2> {
  static constexpr std::string_view kSuffix = "_pairs";
  using SharedStorage = Storage<Config128x256x64_pairs>;
};
struct Config256x128x64 : TileConfig<256, 128, 2, 2, false, 4, 1> {
  using SharedStorage = Storage<Config256x128x64>;
};
struct Config64x128x32 : TileConfig<64, 128, 4, 1, false, 8, 1> {
  using SharedStorage = Storage<Config64x128x32>;
};
struct Config128x128x32 : TileConfig<128, 128, 4, 2, false, 6, 1> {
  using SharedStorage = Storage<Config128x128x32>;
};
struct Config128x256x32 : TileConfig<128, 256, 4, 2, false, 4, 2> {
  using SharedStorage = Storage<Config128x256x32>;
};
struct Config64x128x128 : TileConfig<64, 128, 1, 1, false, 8, 1, true> {
  using SharedStorage = Storage<Config64x128x128>;
};
struct Config128x128x128 : TileConfig<128, 128, 1, 2, false, 6, 1, true> {
  using SharedStorage = Storage<Config128x128x128>;
};
struct Config256x128x128 : TileConfig<256, 128, 1, 2, false, 4, 1> {  // int8 only: fp8's way out spills registers
  using SharedStorage = Storage<Config256x128x128>;
};
struct Config128x256x128 : TileConfig<128, 256, 1, 2, false, 4, 2, true> {
  using SharedStorage = Storage<Config128x256x128>;
};

// Whether rhs, as it lies along N, passes through registers.
template <class Config, class Op>
constexpr bool kSwaps = Config::kRhsInRegisters && !Op::kAnyMajor && Op::kPlanes == 1;

// Whether a consumer has registers for its way out in runs: for fewer sums than some tiles have, and none apart.
template <class Config, class Op>
constexpr bool kInRuns = Config::kSplitK && Op::kPlanes == 1;

template <class Config, class Op, bool kLhsTransposed, bool kRhsTransposed>
using LoopOf = std::conditional_t<kSwaps<Config, Op> && !kRhsTransposed, sm90::RhsInRegisters<Config, Op>,
                                  sm90::Mainloop<Config, Op, kLhsTransposed, kRhsTransposed>>;

template <class Config, class Op, Way kWay, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap lhs_map, const __grid_constant__ CUtensorMap rhs_map,
                 const __grid_constant__ CUtensorMap out_map, bool tma_stores, Epilogue epilogue, FixOf<Op> fix,
                 typename Op::Sum* partials, unsigned* g_taken, Schedule<Config> schedule) {
  using Loop = LoopOf<Config, Op, kLhsTransposed, kRhsTransposed>;
  constexpr Tile kCta = Config::kCtaTile;
  auto& smem = shared_storage<typename Config::SharedStorage>();
  const int rank = Config::kClusterCtas > 1 ? ptx::cluster_ctarank() : 0;
  // Whether the CTAs of a cluster share K of all tiles, or may do so of their last one.
  constexpr bool kAllShare = kWay == Way::kCluster;
  constexpr bool kMayShare = kWay != Way::kPlain && Config::kSplitK && Config::kClusterCtas == 1;
  const auto shared_in_cluster = [&](int64_t partial) {
    return kAllShare || (kMayShare && schedule.in_cluster && partial >= 0);
  };

  if (threadIdx.x == 0) {
    if constexpr (kWay == Way::kPlain) smem.pipeline.taken.init(rank);
    smem.pipeline.init(Loop::kReleases);
  }
  if constexpr (Config::kClusterCtas > 1) {
    __syncwarp();
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }

  typename Loop::StageRing ring;
  if (threadIdx.x >= kWarpgroup) {
    if constexpr (Config::kConsumers > 1) ptx::register_alloc<kConsumerRegisters>();
    const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
    const int first = Config::kPingPong ? 0 : consumer * Loop::kBlocks * ptx::kWgmmaM;  // row, or column
    int turn = 0;  // how many tiles the consumers have had, if they take turns
    const auto all_consumers_meet = [] { ptx::barrier_sync(1 + Config::kConsumers, Config::kConsumers * kWarpgroup); };
    if (schedule.shape.lhs_rows < kCta.m) {
      Loop::clear_lhs(smem.pipeline, schedule.shape.lhs_rows, static_cast<int>(threadIdx.x) - kWarpgroup);
      all_consumers_meet();
    }
    sm90::OutWriter writer(smem.out[consumer], 1 + consumer);
    const auto take = [&](unsigned n) { return smem.pipeline.taken.next_of_warp(n); };
    schedule.template for_each<kWay>(take, [&](int64_t partial, const TileCoord& tile, int, int k_tiles) {
      if constexpr (Config::kPingPong) {
        const int n = turn++;
        if (n % 2 != consumer) {
          ring.skip(Loop::steps(k_tiles));
          if (shared_in_cluster(partial)) all_consumers_meet();
          return;
        }
        smem.pipeline.wait_for_turn(consumer, n / 2);
      }
      sm90::Terms<kCta.n> terms = {};
      if constexpr (kWay == Way::kAny && !Loop::kTransposesSums) {
        terms = writer.template fetch<kCta.n>(epilogue, schedule.shape.N, tile.batch, tile.col);
      }
      typename Loop::Sums sums;
      int corner[] = {static_cast<int>(tile.batch), static_cast<int>(tile.row), static_cast<int>(tile.col)};
      Loop::multiply(sums, smem.pipeline, ring, first, k_tiles, [&] {
        if constexpr (Config::kPingPong) smem.pipeline.pass_turn(consumer);
      });
      TileCoord at = tile;
      if constexpr (!Config::kSplitK) {  // what can be computed from these now, no register has held beside the sums
        ptx::pin_registers(corner);
        writer.pin_thread();
        at = {corner[0], corner[1], corner[2]};
      }
      const int row = rank * kCta.m;
      at.row += row + (Loop::kTransposesSums ? 0 : first);
      if (shared_in_cluster(partial)) {
        all_consumers_meet();
        if constexpr (Loop::kTransposesSums) {
          auto& s_tile = smem.sums.tile.of(typename Op::Sum{});
          Loop::store(sums, first, s_tile.elements, s_tile.kStride);
        } else {
          smem.sums.store(sums, first);
        }
      } else if (kWay == Way::kAny && Config::kSplitK && partials != nullptr && partial >= 0) {
        auto* g_partial = partials + (partial * Config::kClusterCtas * kCta.m + row) * kCta.n;
        if constexpr (Loop::kTransposesSums) {
          Loop::store(sums, first, g_partial, kCta.n);
        } else {
          sm90::write_partial<Config>(sums, g_partial, first);
        }
      } else if constexpr (Loop::kTransposesSums) {
        sm90::write_quads<kWay == Way::kPlain, Loop>(sums, epilogue, {writer, out_map, tma_stores}, at, first,
                                                     schedule.shape.M, schedule.shape.N);
      } else {
        if constexpr (kWay == Way::kAny) sm90::fix_sums(sums, fix, at, schedule.shape);
        sm90::write<kWay, Op, kInRuns<Config, Op>>(sums, writer, out_map, tma_stores, epilogue, terms, at,
                                                   schedule.shape);
      }
    });
    writer.wait();
    __syncwarp();
  } else {  // ptxas puts this first: what begins first should not have to wait for instructions from afar
    if constexpr (Config::kConsumers > 1) ptx::register_dealloc<kProducerRegisters>();
    const Shape& shape = schedule.shape;
    if (threadIdx.x == 0) {
      const auto take = [&](unsigned n) { return smem.pipeline.taken.next(n, true); };
      schedule.template for_each<kWay>(take, [&](int64_t, const TileCoord& tile, int k, int k_tiles) {
        const int batch = shape.lhs_shared ? 0 : static_cast<int>(tile.batch);
        Loop::template produce<true>(smem.pipeline, ring, lhs_map,
                                     {static_cast<int>(tile.row) + rank * kCta.m, k, k_tiles, batch, shape.plane_k},
                                     shape.lhs_rows * sm90::kRowBytes, rank);
      });
    } else if (threadIdx.x == 32) {
      const auto take = [&](unsigned n) { return smem.pipeline.taken.next(n, false); };
      schedule.template for_each<kWay>(take, [&](int64_t, const TileCoord& tile, int k, int k_tiles) {
        const int batch = shape.rhs_shared ? 0 : static_cast<int>(tile.batch);
        Loop::template produce<false>(smem.pipeline, ring, rhs_map,
                                      {static_cast<int>(tile.col), k, k_tiles, batch, shape.plane_k}, Loop::Rhs::kBytes,
                                      rank);
      });
    } else if (kWay == Way::kPlain && threadIdx.x == 64 && schedule.takes()) {
      if (rank == 0) {
        smem.pipeline.taken.hand_out(g_taken, schedule.first_taken(), schedule.units);
      } else {
        smem.pipeline.taken.pass_on(schedule.units);
      }
    }
    __syncwarp();
  }
  if constexpr (kMayShare) {
    if (kAllShare || schedule.shares()) {  // all CTAs of a cluster do, or none
      ptx::cluster_arrive();
      const TileCoord tile = schedule.shared_tile();
      smem.sums.template wait_and_write<Config::kThreads, typename Op::Sum>(
          static_cast<int>(schedule.split.splits), epilogue, fix, tile, schedule.shape.M, schedule.shape.N);
    }
  }
  // Other CTAs arrive at this one's mbarriers, write to its stages and read its sums until they are through.
  if (Config::kClusterCtas > 1 || kAllShare || (kMayShare && schedule.in_cluster)) ptx::cluster_sync_relaxed();
}

template <class Config>
Copies copies(const Problem& p) {
  const Operands<Config> operands(p);
  return operands.lhs.copies() += operands.rhs.copies();
}

template <class Config>
int64_t workspace_bytes(const Problem& p) {
  const Schedule<Config> schedule(p);
  return copies<Config>(p).bytes + schedule.partial_bytes() + schedule.counter_bytes();
}

struct Maps {
  CUtensorMap lhs = {}, rhs = {}, out = {};
  bool tma_stores = false;
};

template <class Config>
std::string encode(Maps& maps, const void* lhs, const void* rhs, const Operands<Config>& operands,
                   const Schedule<Config>& schedule, const GemmArgs& args) {
  const Problem& p = args.problem;
  constexpr Tile kCta = Config::kCtaTile;
  if (p.K > 0) {  // a tensor map cannot be empty, and is not needed then
    const int share = kCta.n / Config::kClusterCtas;
    TensorBox lhs_box =
        operand_box(lhs, p.lhs_dtype, operands.lhs.view(), p.batch, schedule.shape.lhs_rows, kCta.k, sm90::kSwizzle);
    TensorBox rhs_box = operand_box(rhs, p.rhs_dtype, operands.rhs.view(), p.batch, kCta.k, share, sm90::kSwizzle);
    lhs_box.rounds_to_tf32 = rhs_box.rounds_to_tf32 = p.lhs_dtype == DType::kF32 && sm90::planes(p) == 1;
    if (std::string error = encode_tensor_map(maps.lhs, lhs_box); !error.empty()) return "lhs: " + error;
    if (std::string error = encode_tensor_map(maps.rhs, rhs_box); !error.empty()) return "rhs: " + error;
  }
  if (schedule.in_cluster && schedule.split.whole == 0) return {};  // all is written by Way::kCluster, without a map
  const bool aligned = reinterpret_cast<uintptr_t>(args.out) % ptx::kChunkBytes == 0 &&
                       begins_at_vectors(p.out, size_bytes(p.out_dtype)) &&
                       p.N * size_bytes(p.out_dtype) % ptx::kChunkBytes == 0;
  if (!aligned) return {};
  const int cols = sm90::kRowBytes / static_cast<int>(size_bytes(p.out_dtype));
  if (std::string error = encode_tensor_map(
          maps.out, operand_box(args.out, p.out_dtype, p.out, p.batch, sm90::kOutRows, cols, sm90::kSwizzle));
      !error.empty()) {
    return "out: " + error;
  }
  maps.tma_stores = true;
  return {};
}

template <class Config, class Op>
std::string launch_for(const GemmArgs& args) {
  const Problem& p = args.problem;
  const Operands<Config> operands(p);
  const Schedule<Config> schedule(p);
  const void *lhs = args.lhs, *rhs = args.rhs;
  char* workspace = static_cast<char*>(args.workspace);
  if (std::string error = operands.lhs.prepare(lhs, workspace, args.stream); !error.empty()) return error;
  if (std::string error = operands.rhs.prepare(rhs, workspace, args.stream); !error.empty()) return error;
  Maps maps;
  if (std::string error = encode(maps, lhs, rhs, operands, schedule, args); !error.empty()) return error;
  auto* partials = schedule.partial_bytes() == 0 ? nullptr : reinterpret_cast<typename Op::Sum*>(workspace);
  auto* taken = reinterpret_cast<unsigned*>(workspace);  // where there are no partial sums
  const int64_t cluster_ctas = schedule.cluster_ctas();
  int64_t clusters = schedule.split.shared();
  if (!schedule.in_cluster || schedule.split.whole > 0) {
    int64_t sms = 0;
    if (std::string error = multiprocessors(sms); !error.empty()) return error;
    // A cluster shares one tile: of those, no more than clusters.
    clusters = std::clamp<int64_t>(sms / cluster_ctas, schedule.in_cluster ? clusters : 1, schedule.units);
  }

  const Epilogue epilogue(args);
  const auto launch_layout = [&]<bool kLhsTransposed, bool kRhsTransposed>() {
    const auto launch = [&]<Way kWay>() {
      return launch_clusters(static_cast<int>(cluster_ctas),
                             wgmma_kernel<Config, Op, kWay, kLhsTransposed, kRhsTransposed>, clusters * cluster_ctas,
                             Config::kThreads, describe<Config>().smem_bytes, args.stream, maps.lhs, maps.rhs, maps.out,
                             maps.tma_stores, epilogue, FixOf<Op>(args), partials, taken, schedule);
    };
    if constexpr (Config::kClusterCtas == 1 && Config::kSplitK) {
      if (schedule.in_cluster && schedule.split.whole == 0) return launch.template operator()<Way::kCluster>();
    }
    if constexpr (!Op::kRecomputes) {
      using Loop = LoopOf<Config, Op, kLhsTransposed, kRhsTransposed>;
      if constexpr (Loop::kWritesPlain) {
        const bool stores = Loop::kTransposesSums ? epilogue.quads_aligned && p.N % 4 == 0 : maps.tma_stores;
        if (stores && epilogue.plain() && schedule.split.splits == 1) {
          if (schedule.takes()) {
            if (std::string error = zero_words(taken, 1, args.stream); !error.empty()) return error;
          }
          return launch.template operator()<Way::kPlain>();
        }
      }
    }
    return launch.template operator()<Way::kAny>();
  };
  std::string error;
  if constexpr (Op::kAnyMajor) {
    error = dispatch_layout(p.layout(), launch_layout);
  } else if (!kSwaps<Config, Op> || operands.rhs.view().transposed) {
    error = launch_layout.template operator()<false, true>();
  } else if constexpr (kSwaps<Config, Op>) {
    error = launch_layout.template operator()<false, false>();
  }
  if (!error.empty() || partials == nullptr) return error;
  return reduce_partial_tiles(args, Schedule<Config>::kTile, schedule.split, partials, Op::kRecomputes);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  return sm90::dispatch_wgmma_op<Config>(args.problem, [&]<class Op>() { return launch_for<Config, Op>(args); });
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes<Config>, &copies<Config>};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(wgmma, &kKernel<Config64x64x64>, &kKernel<Config64x128x64>, &kKernel<Config64x128x64_pairs>,
               &kKernel<Config128x128x64>, &kKernel<Config128x192x64>, &kKernel<Config64x256x64>,
               &kKernel<Config64x256x64_turns>, &kKernel<Config128x256x64>, &kKernel<Config128x256x64_pairs>,
               &kKernel<Config256x128x64>, &kKernel<Config64x128x32>, &kKernel<Config128x128x32>,
               &kKernel<Config128x256x32>, &kKernel<Config64x128x128>, &kKernel<Config128x128x128>,
               &kKernel<Config256x128x128>, &kKernel<Config128x256x128>)
