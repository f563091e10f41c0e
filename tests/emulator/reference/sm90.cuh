// sm90: a warp-specialised GEMM on TMA, mbarriers and wgmma as small as it can be, for the tests of the emulator. Three
// kernels are as they should be (the variants, sm90.cu); each of the others has one planted defect (sm90_defects.cu).
//
// One thread of the first warpgroup loads k-tiles of both operands into a ring of stages; each of the others multiplies
// 64 rows of the CTA tile. A stage's mbarriers hand it back and forth: `full` when the copies have landed, `empty` when
// the consumers have read it. Operands keep the storage order that they have in global memory: descriptors tell wgmma
// which dimension is contiguous.
//
// Rows in memory must begin at multiples of 16 bytes, which is what TMA can address.
#pragma once

#include <array>

#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "ptx/address.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pin.cuh"
#include "ptx/registers.cuh"
#include "ptx/shared_storage.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "reference/sm90_defects.h"
#include "reference/store_element.cuh"
#include "tile/scheduler.cuh"
#include "tile/tensor_map.h"

namespace jaxgemm {
namespace {

using ptx::Major;
using ptx::Mbarrier;
using ptx::Swizzle;
using sm90::Defect;
using sm90::Variant;

constexpr int kWarpgroup = ptx::kWarpgroupThreads;
constexpr int kConsumers = 2;
constexpr int kTileM = kConsumers * ptx::kWgmmaM, kTileN = 64, kTileK = 64;
constexpr Swizzle kSwizzle = Swizzle::k128B;  // 64 elements: a row of every box
constexpr int kBoxElems = 64;
constexpr int kAtomBytes = 8 * 128;  // the swizzle's pattern: eight rows of a box
constexpr int kRegisters = kTileN / 2;
constexpr int kStagedCols = 32;  // of out, at a time
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

constexpr std::array kCleanDTypes = {
    DTypes{DType::kF16, DType::kF16, DType::kF16}, DTypes{DType::kF16, DType::kF16, DType::kF32},
    DTypes{DType::kBF16, DType::kBF16, DType::kBF16}, DTypes{DType::kBF16, DType::kBF16, DType::kF32}};
constexpr std::array kDefectDTypes = {DTypes{DType::kBF16, DType::kBF16, DType::kF32}};

template <Variant kVariant, Defect kDefect>
struct Config {
  __host__ __device__ static constexpr bool has(Defect defect) { return defect == kDefect; }
  static constexpr bool kTmaStore = kVariant == Variant::kTmaStore;
  static constexpr int kClusterCtas = kVariant == Variant::kMulticast ? 2 : 1;

  static constexpr std::string_view kFamily = sm90::family_name(kVariant, kDefect);
  static constexpr std::span<const DTypes> kDTypes =
      has(Defect::kNone) ? std::span<const DTypes>(kCleanDTypes) : std::span<const DTypes>(kDefectDTypes);
  static constexpr Tile kCtaTile = {kTileM, kTileN, kTileK}, kWarpTile = {ptx::kWgmmaM, kTileN, kTileK};
  static constexpr int kMinSm = 90, kMaxSm = 90;
  static constexpr int kStages = 3, kThreads = (1 + kConsumers) * kWarpgroup;
  struct SharedStorage {
    struct {
      alignas(1024) uint16_t lhs[kTileM * kTileK];  // bits of float16 or bfloat16
      alignas(1024) uint16_t rhs[kTileN * kTileK];
    } stages[kStages];
    alignas(128) float staged[kTmaStore ? kConsumers : 1][ptx::kWgmmaM * kStagedCols];  // or narrower elements
    Mbarrier full[kStages], empty[kStages];
  };
};

// Where a walker round the ring is. The parity is that of the phases of `full` in this round.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  template <class Config>
  __device__ void advance() {
    if (++stage < Config::kStages) return;
    stage = 0;
    if constexpr (!Config::has(Defect::kStuckParity)) parity ^= 1;
  }
};

struct Maps {
  const CUtensorMap &lhs, &rhs, &out;
};

struct Shape {
  int64_t M, N, K;
  int lhs_batches, rhs_batches;  // 1 if all batches share the operand
};

// This CTA's place: its tile of out, and its rank in the cluster, whose CTAs compute neighbouring rows of tiles.
struct Place {
  int batch, row, col, rank;
};

template <class Config>
__device__ void init_barriers(typename Config::SharedStorage& smem) {
  if (threadIdx.x == 0) {
    constexpr int kCtas = Config::has(Defect::kIgnoresOtherCta) ? 1 : Config::kClusterCtas;
    constexpr int kReaders = kConsumers * kCtas + (Config::has(Defect::kEmptyCountTooLarge) ? 1 : 0) -
                             (Config::has(Defect::kEmptyCountTooSmall) ? 1 : 0);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      ptx::mbarrier_init(smem.full[stage], 1);
      ptx::mbarrier_init(smem.empty[stage], kReaders);
    }
    if constexpr (!Config::has(Defect::kNoInitFence)) ptx::fence_mbarrier_init();
  }
  if constexpr (Config::has(Defect::kNoBarrierAfterInit)) return;
  if constexpr (Config::kClusterCtas > 1 && !Config::has(Defect::kNoClusterBarrierAfterInit)) {
    __syncwarp();
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
}

// --- the producer ----------------------------------------------------------------------------------------------------

// lhs: one box per 64 rows if M is contiguous, else one for all.
template <bool kLhsTransposed>
__device__ void load_lhs(uint16_t* s_lhs, Mbarrier& full, const CUtensorMap& map, int row, int k, int batch) {
  if constexpr (kLhsTransposed) {
#pragma unroll
    for (int m = 0; m < kTileM; m += kBoxElems) {
      ptx::tma_load_3d(s_lhs + m * kTileK, map, full, row + m, k, batch);
    }
  } else {
    ptx::tma_load_3d(s_lhs, map, full, k, row, batch);
  }
}

// rhs: one box, of which each CTA of a cluster loads a part (some rows of the box) for all.
template <class Config, bool kRhsTransposed>
__device__ void load_rhs(uint16_t* s_rhs, Mbarrier& full, const CUtensorMap& map, int k, int col, int batch, int rank) {
  constexpr int kRows = kBoxElems / Config::kClusterCtas;
  const int x = kRhsTransposed ? k : col, y = (kRhsTransposed ? col : k) + rank * kRows;
  if constexpr (Config::kClusterCtas > 1) {
    const int mask = Config::has(Defect::kWrongMulticastMask) ? 1 << rank : (1 << Config::kClusterCtas) - 1;
    ptx::tma_load_multicast_3d(s_rhs + rank * kRows * kBoxElems, map, full, x, y, batch, static_cast<uint16_t>(mask));
  } else {
    ptx::tma_load_3d(s_rhs, map, full, x, y, batch);
  }
}

template <class Config, bool kLhsTransposed, bool kRhsTransposed>
__device__ void produce(typename Config::SharedStorage& smem, const Maps& maps, const Place& place,
                        const Shape& shape) {
  constexpr uint32_t kLhsBytes = sizeof smem.stages[0].lhs, kRhsBytes = sizeof smem.stages[0].rhs;
  constexpr uint32_t kTxBytes = kLhsBytes + (Config::has(Defect::kTooFewTxBytes) ? 0 : kRhsBytes) +
                                (Config::has(Defect::kTooManyTxBytes) ? 16 : 0);
  if (shape.K > 0) {
    ptx::tma_prefetch_map(maps.lhs);
    ptx::tma_prefetch_map(maps.rhs);
  }
  const int lhs_batch = shape.lhs_batches == 1 ? 0 : place.batch, rhs_batch = shape.rhs_batches == 1 ? 0 : place.batch;
  Ring ring;
  for (int k = 0; k < shape.K; k += kTileK) {
    auto& stage = smem.stages[ring.stage];
    Mbarrier& full = smem.full[ring.stage];
    if constexpr (!Config::has(Defect::kNoEmptyWait)) {
      ptx::mbarrier_wait(smem.empty[ring.stage], ring.parity ^ (Config::has(Defect::kProducerParity) ? 0 : 1));
    }
    ptx::mbarrier_arrive_expect_tx(full, kTxBytes);
    load_lhs<kLhsTransposed>(stage.lhs, full, maps.lhs, place.row, k, lhs_batch);
    const int rhs_k = Config::has(Defect::kCoordinateOffByOneBox) ? k + kTileK : k;
    constexpr int kShift = Config::has(Defect::kCoordinateMisaligned) ? 1 : 0;
    load_rhs<Config, kRhsTransposed>(stage.rhs, full, maps.rhs, rhs_k + kShift, place.col + kShift, rhs_batch,
                                     place.rank);
    ring.advance<Config>();
  }
}

// --- the consumers ---------------------------------------------------------------------------------------------------

// One arrival for the warpgroup, at every CTA whose copies write this stage.
template <class Config>
__device__ void release(Mbarrier& empty, int rank) {
  if (threadIdx.x % kWarpgroup != 0) return;
  ptx::mbarrier_arrive(empty);
  if constexpr (Config::kClusterCtas > 1 && !Config::has(Defect::kIgnoresOtherCta)) {
    if constexpr (Config::has(Defect::kArrivesAtOwn)) {
      ptx::mbarrier_arrive(empty);
    } else {
      ptx::mbarrier_arrive_remote(empty, rank ^ 1);
    }
  }
}

// A box with rows of 64 elements: along K if it is K-major, where the next 16 of them are 32 bytes further, else along
// M or N, where the next 16 of K are 16 rows further.
template <class Config, Major kMajor>
struct OperandBox {
  static constexpr int kStepBytes = (kMajor == Major::kK ? ptx::kWgmmaStepBytes : 2 * kAtomBytes) /
                                    (Config::has(Defect::kHalfDescriptorStep) ? 2 : 1);
  static constexpr ptx::MatrixLayout kLayout = {
      .leading_bytes = 16,  // unused: a row is no shorter than what wgmma takes of it
      .stride_bytes = kAtomBytes / (Config::has(Defect::kWrongStrideBytes) ? 2 : 1),
      .swizzle = Config::has(Defect::kWrongDescriptorSwizzle) ? Swizzle::k64B : kSwizzle};

  __device__ static uint64_t descriptor(const uint16_t* s_box) {
    return ptx::matrix_descriptor(ptx::shared_address(s_box), kLayout);
  }
};

// d = 64 rows of lhs * rhs. One k-tile's wgmmas are in flight while the next one is waited for.
template <class Config, class T, bool kLhsTransposed, bool kRhsTransposed>
__device__ void multiply(float (&d)[kRegisters], typename Config::SharedStorage& smem, int consumer, int rank,
                         int64_t K) {
  constexpr Major kMajorA = kLhsTransposed ? Major::kMN : Major::kK;
  constexpr Major kMajorB = kRhsTransposed != Config::has(Defect::kWrongMajor) ? Major::kK : Major::kMN;
  using Lhs = OperandBox<Config, kMajorA>;
  using Rhs = OperandBox<Config, kMajorB>;
#pragma unroll
  for (float& sum : d) sum = 0.0f;
  if (K == 0) return;
  Ring ring;
  int previous = -1;  // the stage of the k-tile before, if there was one
  for (int64_t k = 0; k < K; k += kTileK) {
    const auto& stage = smem.stages[ring.stage];
    if constexpr (!Config::has(Defect::kNoFullWait)) {
      ptx::mbarrier_wait(smem.full[ring.stage], ring.parity ^ (Config::has(Defect::kConsumerParity) ? 1 : 0));
    }
    const int rows = Config::has(Defect::kSameRowsTwice) ? 0 : consumer * ptx::kWgmmaM;
    const uint64_t lhs = Lhs::descriptor(stage.lhs + rows * kTileK), rhs = Rhs::descriptor(stage.rhs);
    if constexpr (!Config::has(Defect::kNoWgmmaFence)) ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / ptx::kWgmmaK<T>; ++step) {
      ptx::wgmma<T, T, kTileN, kMajorA, kMajorB>(d, ptx::advance(lhs, step * Lhs::kStepBytes),
                                                 ptx::advance(rhs, step * Rhs::kStepBytes), 1);
    }
    if constexpr (!Config::has(Defect::kNoCommit)) ptx::wgmma_commit();
    if constexpr (Config::has(Defect::kEarlyRelease)) release<Config>(smem.empty[ring.stage], rank);
    ptx::wgmma_wait<1>();
    if constexpr (!Config::has(Defect::kEarlyRelease)) {
      const int done = Config::has(Defect::kReleasesWrongStage) ? ring.stage : previous;
      if (previous >= 0) release<Config>(smem.empty[done], rank);
    }
    previous = ring.stage;
    ring.advance<Config>();
  }
  if constexpr (!Config::has(Defect::kNoFinalWait)) ptx::wgmma_wait<0>();
  ptx::pin_registers(d);
}

template <class Config>
__device__ ptx::ElementOf element_of(int i) {
  const int swapped = Config::has(Defect::kRowHalvesSwapped) ? i ^ 2 : i;
  return ptx::accumulator_element(static_cast<int>(threadIdx.x) % kWarpgroup, swapped);
}

// Out of line, as store_element() is.
__device__ __noinline__ float finished(Epilogue epilogue, float sum, int64_t batch, int64_t col) {
  return epilogue.finish(sum, batch, col);
}

template <class Config>
__device__ void store_registers(const float (&d)[kRegisters], const Epilogue& epilogue, const Place& place,
                                const Shape& shape, int first_row) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) {
    const auto [row, col] = element_of<Config>(i);
    const int64_t m = first_row + row, n = place.col + col;
    if (m < shape.M && n < shape.N) store_element(epilogue, place.batch, m, n, d[i]);
  }
}

// Writes element `at` of a staged tile of out's dtype.
__device__ void stage_value(float* s_tile, int at, DType dtype, float value) {
  if (dtype == DType::kF32) {
    s_tile[at] = value;
  } else if (dtype == DType::kF16) {
    reinterpret_cast<__half*>(s_tile)[at] = __float2half_rn(value);
  } else {
    reinterpret_cast<__nv_bfloat16*>(s_tile)[at] = __float2bfloat16_rn(value);
  }
}

// Through shared memory, some columns at a time. TMA leaves out what lies outside of out.
template <class Config>
__device__ void store_tma(const float (&d)[kRegisters], float* s_tile, const CUtensorMap& map, const Epilogue& epilogue,
                          const Place& place, const Shape& shape, int first_row, int consumer) {
  const bool elected = threadIdx.x % kWarpgroup == 0;
  const auto meet = [&](int threads) { ptx::barrier_sync(1 + consumer, threads); };
  constexpr int kPasses = kTileN / kStagedCols, kRegistersPerPass = kRegisters / kPasses;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    if (pass > 0) {
      if (elected && !Config::has(Defect::kNoWaitBeforeReuse)) ptx::tma_wait_group_read<0>();
      meet(kWarpgroup);
    }
#pragma unroll
    for (int i = 0; i < kRegistersPerPass; ++i) {
      const auto [row, col] = element_of<Config>(i);
      const int64_t n = place.col + pass * kStagedCols + col;
      const float value = n < shape.N ? finished(epilogue, d[pass * kRegistersPerPass + i], place.batch, n) : 0.0f;
      stage_value(s_tile, row * kStagedCols + col, epilogue.out_dtype, value);
    }
    if constexpr (!Config::has(Defect::kNoProxyFence)) ptx::fence_proxy_async();
    if constexpr (!Config::has(Defect::kNoBarrierBeforeStore)) {
      meet(Config::has(Defect::kBarrierCountsDiffer) && threadIdx.x % 2 == 0 ? 2 * kWarpgroup : kWarpgroup);
    }
    if (elected) {
      constexpr int kShift = Config::has(Defect::kStoresBeforeTensor) ? 8 : 0;
      ptx::tma_store_3d(map, s_tile, place.col + pass * kStagedCols, first_row - kShift, place.batch);
      if constexpr (!Config::has(Defect::kNoStoreCommit)) ptx::tma_commit_group();
    }
  }
  if (elected && !Config::has(Defect::kNoWaitBeforeExit)) ptx::tma_wait_group_read<0>();
}

// --- the kernel ------------------------------------------------------------------------------------------------------

template <class Config, class T, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads, 1)
    sm90_kernel(const __grid_constant__ CUtensorMap lhs_map, const __grid_constant__ CUtensorMap rhs_map,
                const __grid_constant__ CUtensorMap out_map, Epilogue epilogue, TileGrid grid, Shape shape) {
  auto& smem = shared_storage<typename Config::SharedStorage>();
  const int rank = Config::kClusterCtas > 1 ? ptx::cluster_ctarank() : 0;
  const TileCoord tile = grid.tile(blockIdx.x / Config::kClusterCtas);
  const Place place = {static_cast<int>(tile.batch), static_cast<int>(tile.row) + rank * kTileM,
                       static_cast<int>(tile.col), rank};
  init_barriers<Config>(smem);

  if (threadIdx.x < kWarpgroup) {
    ptx::register_dealloc<kProducerRegisters>();
    if (threadIdx.x == 0) {
      produce<Config, kLhsTransposed, kRhsTransposed>(smem, {lhs_map, rhs_map, out_map}, place, shape);
    }
    __syncwarp();
  } else {
    const bool skips = Config::has(Defect::kPartialSetmaxnreg) && threadIdx.x / 32 % 4 == 3;
    if (!skips) ptx::register_alloc<kConsumerRegisters>();
    const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
    const int first_row = place.row + consumer * ptx::kWgmmaM;
    float d[kRegisters];
    multiply<Config, T, kLhsTransposed, kRhsTransposed>(d, smem, consumer, rank, shape.K);
    if constexpr (Config::kTmaStore) {
      store_tma<Config>(d, smem.staged[consumer], out_map, epilogue, place, shape, first_row, consumer);
    } else {
      store_registers<Config>(d, epilogue, place, shape, first_row);
    }
    __syncwarp();
  }
  // The other CTA arrives at this one's mbarriers until it is through.
  if constexpr (Config::kClusterCtas > 1 && !Config::has(Defect::kNoClusterBarrierAtExit)) ptx::cluster_sync();
}

// --- the launch ------------------------------------------------------------------------------------------------------

struct HostMaps {
  CUtensorMap lhs = {}, rhs = {}, out = {};
};

template <class Config>
std::string encode(HostMaps& maps, const GemmArgs& args) {
  const Problem& p = args.problem;
  constexpr Swizzle kLoads = Config::has(Defect::kUnswizzledLoad) ? Swizzle::kNone : kSwizzle;
  if (p.K > 0) {  // a tensor map cannot be empty, and is not needed then
    TensorBox lhs = operand_box(args.lhs, p.lhs_dtype, p.lhs, p.batch, kTileM, kTileK, kLoads);
    TensorBox rhs = operand_box(args.rhs, p.rhs_dtype, p.rhs, p.batch, kTileK, kTileN, kLoads);
    lhs.box_inner = rhs.box_inner = kBoxElems;
    rhs.box_outer /= Config::kClusterCtas;
    if (std::string error = encode_tensor_map(maps.lhs, lhs); !error.empty()) return "lhs: " + error;
    if (std::string error = encode_tensor_map(maps.rhs, rhs); !error.empty()) return "rhs: " + error;
  }
  if (!Config::kTmaStore) return {};
  if (p.N * size_bytes(p.out_dtype) % ptx::kChunkBytes != 0) {
    return "TMA stores whole chunks of 16 bytes, which rows of " + std::to_string(p.N) + " elements are not made of";
  }
  const TensorBox out = operand_box(args.out, p.out_dtype, p.out, p.batch, ptx::kWgmmaM, kStagedCols, Swizzle::kNone);
  if (std::string error = encode_tensor_map(maps.out, out); !error.empty()) return "out: " + error;
  return {};
}

template <class Config, class T>
std::string launch_for(const GemmArgs& args) {
  const Problem& p = args.problem;
  HostMaps maps;
  if (std::string error = encode<Config>(maps, args); !error.empty()) return error;
  const auto batches = [&](const MatrixView& view) { return view.batch_stride == 0 ? 1 : static_cast<int>(p.batch); };
  const Shape shape = {p.M, p.N, p.K, batches(p.lhs), batches(p.rhs)};
  const TileGrid grid({Config::kClusterCtas * kTileM, kTileN, kTileK}, p.M, p.N);  // of clusters
  return dispatch_layout(p.layout(), [&]<bool kLhsTransposed, bool kRhsTransposed>() {
    return launch_clusters(Config::kClusterCtas, sm90_kernel<Config, T, kLhsTransposed, kRhsTransposed>,
                           Config::kClusterCtas * grid.ctas(p.batch), Config::kThreads, describe<Config>().smem_bytes,
                           args.stream, maps.lhs, maps.rhs, maps.out, Epilogue(args), grid, shape);
  });
}

template <class Config>
std::string launch(const GemmArgs& args) {
  if constexpr (Config::has(Defect::kNone)) {
    if (args.problem.lhs_dtype == DType::kF16) return launch_for<Config, __half>(args);
  }
  return launch_for<Config, __nv_bfloat16>(args);
}

template <Variant kVariant, Defect kDefect>
constexpr Kernel kKernel = {describe<Config<kVariant, kDefect>>(), &launch<Config<kVariant, kDefect>>, &no_workspace};

}  // namespace
}  // namespace jaxgemm
