// int4_wgmma: 4-bit weights on Hopper's tensor cores.
//
// What is new against int4_mma: one warp brings tokens, packed codes, scales and zero points into a ring of stages by
// TMA, and warpgroups of consumers multiply. Again the weights are A, whose rows are columns of rhs, and come from
// registers, which is the one way into wgmma that leaves time to make numbers of codes: the fragments of the next 64
// rows are made while the tensor cores work on the last ones (mainloop/sm90_codes.cuh). Tokens are B, of any number
// that is a multiple of 8. Where there are few tiles of out, the CTAs of a cluster share K and add up their sums in a
// fixed order through distributed shared memory.
//
// Source: "register-sourced" mixed-input GEMM, CUTLASS, example 55 and
// sm90_mma_tma_gmma_rs_warpspecialized_mixed_input; PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
// Instructions".
#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "mainloop/sm90_codes.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/registers.cuh"
#include "ptx/shared_storage.cuh"
#include "ptx/tma.cuh"
#include "tile/scheduler.cuh"
#include "tile/split_k.h"
#include "tile/tensor_map.h"
#include "tile/tma_operand.h"

namespace jaxgemm {
namespace {

constexpr int kWarpgroup = ptx::kWarpgroupThreads, kWarp = 32;

// CONSUMERS warpgroups have 64 columns each. CTAS: as in int4_mma.
template <int TOKENS, int CONSUMERS, int STAGES, int CTAS = 1>
struct TileConfig {
  static constexpr std::string_view kFamily = "int4_wgmma";
  static constexpr std::array<DTypes, 4> kDTypes = {{{DType::kF16, DType::kF16, DType::kF16},
                                                     {DType::kBF16, DType::kBF16, DType::kBF16},
                                                     {DType::kF16, DType::kF16, DType::kF32},
                                                     {DType::kBF16, DType::kBF16, DType::kF32}}};
  static constexpr int kMinSm = 90, kMaxSm = 90, kBits = 4, kGroupMultiple = 32;
  static constexpr bool kSplitK = true, kTma = true, kScalesSums = TOKENS <= 32;
  static constexpr int kHalves = 2, kRowBytes = 128, kMostSegments = 4;
  static constexpr Tile kCtaTile = {TOKENS, CONSUMERS * ptx::kWgmmaM, kHalves * kPackedTileK};
  static constexpr Tile kWarpTile = {TOKENS, ptx::kWgmmaM, kCtaTile.k};
  static constexpr int kStages = STAGES, kConsumers = CONSUMERS, kCtas = CTAS;
  // Two warpgroups with many sums each want more registers than a multiprocessor has for everybody: a whole warpgroup
  // then produces, and gives its own away.
  static constexpr bool kMovesRegisters = CONSUMERS == 2 && CTAS == 1;
  static constexpr int kConsumerThreads = CONSUMERS * kWarpgroup;
  static constexpr int kThreads = kConsumerThreads + (kMovesRegisters ? kWarpgroup : kWarp);

  struct Stage {
    alignas(1024) char tokens[kHalves][TOKENS * kRowBytes];
    alignas(128) char codes[kCtaTile.n / kPackedTileN][kHalves * kPackedTileBytes];
    alignas(128) uint16_t scales[kMostSegments][kCtaTile.n];
    alignas(128) uint8_t zeros[kMostSegments][kCtaTile.n];
  };
  struct Pipeline {
    alignas(8) ptx::Mbarrier full[STAGES], empty[STAGES];
  };
  struct Sums {
    static constexpr int kStride = kCtaTile.n + 4;  // 4 modulo 32: a warp's elements lie in different banks
    alignas(16) float rows[TOKENS][kStride];
  };
  struct SharedStorage {
    union {
      Stage stages[STAGES];
      Sums sums;  // when the K loop is over
    };
    Pipeline pipeline;
  };
};

struct Config16x64 : TileConfig<16, 1, 5, 4> {};
struct Config16x256 : TileConfig<16, 4, 9> {};
struct Config32x64 : TileConfig<32, 1, 5, 3> {};
struct Config32x128x128 : TileConfig<32, 2, 6, 2> {};
struct Config32x128x128_deep : TileConfig<32, 2, 10> {  // for long K
  static constexpr std::string_view kSuffix = "_deep";
};
struct Config32x256 : TileConfig<32, 4, 8> {};
struct Config64x64 : TileConfig<64, 1, 5, 2> {};
struct Config64x128x128 : TileConfig<64, 2, 4, 2> {};
struct Config64x128x128_deep : TileConfig<64, 2, 8> {
  static constexpr std::string_view kSuffix = "_deep";
};
struct Config64x256 : TileConfig<64, 4, 6> {};
struct Config128x128 : TileConfig<128, 2, 5> {};
struct Config256x128 : TileConfig<256, 2, 3> {};

struct Maps {
  CUtensorMap tokens, codes, scales, zeros;
};

struct Work {
  TileGrid grid;
  Divisor by_splits, by_group;
  int splits, k_tiles_each, k_tiles;
  int64_t groups, tiles_n;
  DType scale_dtype;

  Work(const Problem& p, const Tile& tile)
      : grid(tile, p.M, p.N),
        by_splits(p.split.splits),
        by_group(p.codes.group_size),
        splits(static_cast<int>(p.split.splits)),
        k_tiles_each(0),
        k_tiles(static_cast<int>((p.K + tile.k - 1) / tile.k)),
        groups((p.K + p.codes.group_size - 1) / p.codes.group_size),
        tiles_n((p.N + kPackedTileN - 1) / kPackedTileN),
        scale_dtype(p.codes.scale_dtype) {
    k_tiles_each = (k_tiles + splits - 1) / splits;
  }
};

// kSegments: see CodesMainloop.
template <class Config, class T, bool kZeros, int kSegments>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtas)
    int4_wgmma_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Work work, Epilogue epilogue,
                      int64_t M, int64_t N) {
  constexpr Tile kCta = Config::kCtaTile;
  auto& smem = shared_storage<typename Config::SharedStorage>();
  auto& pipeline = smem.pipeline;
  const auto [tile_index, part] = work.by_splits.divide(blockIdx.x);
  const TileCoord tile = work.grid.tile(tile_index);
  const int first = static_cast<int>(part) * work.k_tiles_each, left = work.k_tiles - first;
  const int k_tiles = left < 0 ? 0 : left < work.k_tiles_each ? left : work.k_tiles_each;

  if (threadIdx.x == 0) {
    for (int i = 0; i < Config::kStages; ++i) {
      ptx::mbarrier_init(pipeline.full[i], 1);
      ptx::mbarrier_init(pipeline.empty[i], Config::kConsumers * kWarpgroup / 32);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  if (threadIdx.x >= Config::kConsumerThreads) {
    if constexpr (Config::kMovesRegisters) ptx::register_dealloc<40>();
    if (threadIdx.x == Config::kConsumerThreads) {
      constexpr uint32_t kParameters = kSegments * kCta.n;
      constexpr uint32_t kBytes = sizeof(Config::Stage::tokens) + sizeof(Config::Stage::codes) +
                                  kParameters * (sizeof(uint16_t) + (kZeros ? sizeof(uint8_t) : 0));
      const int batch = static_cast<int>(tile.batch), row = static_cast<int>(tile.row),
                col = static_cast<int>(tile.col);
      const int tile_n = static_cast<int>(tile.batch * work.tiles_n) + col / kPackedTileN;
      for (int i = 0; i < k_tiles; ++i) {
        const int s = i % Config::kStages, k = (first + i) * kCta.k;
        auto& stage = smem.stages[s];
        ptx::mbarrier_wait(pipeline.empty[s], static_cast<uint32_t>(i / Config::kStages % 2) ^ 1u);
        ptx::mbarrier_arrive_expect_tx(pipeline.full[s], kBytes);
        const int group =
            static_cast<int>(tile.batch * work.groups + work.by_group.divide(static_cast<unsigned>(k)).quotient);
        constexpr int kWordsOfTile = kPackedTileBytes / sizeof(int32_t);
        ptx::tma_load_2d(stage.codes, maps.codes, pipeline.full[s], k / kPackedTileK * kWordsOfTile, tile_n);
        ptx::tma_load_2d(stage.scales, maps.scales, pipeline.full[s], col, group);
        if constexpr (kZeros) ptx::tma_load_2d(stage.zeros, maps.zeros, pipeline.full[s], col, group);
#pragma unroll
        for (int half = 0; half < Config::kHalves; ++half) {
          ptx::tma_load_3d(stage.tokens[half], maps.tokens, pipeline.full[s], k + half * kPackedTileK, row, batch);
        }
      }
    }
  } else {
    if constexpr (Config::kMovesRegisters) ptx::register_alloc<232>();
    const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
    using Loop = sm90::CodesMainloop<Config, T, kZeros, kSegments>;
    typename Loop::Sums sums;
    Loop(warpgroup, work.scale_dtype).run(sums, smem, k_tiles);
    // The sums take the place of the stages, which others may still read.
    ptx::barrier_sync(1, Config::kConsumerThreads);
    float* s_sums = smem.sums.rows[0] + warpgroup * ptx::kWgmmaM;
#pragma unroll
    for (int i = 0; i < Loop::kRegisters; ++i) {
      const ptx::ElementOf element = ptx::accumulator_element(Loop::thread(), i);
      s_sums[element.col * Config::Sums::kStride + element.row] = sums[i];
    }
  }
  work.splits > 1 ? ptx::cluster_sync() : __syncthreads();

  constexpr int kQuads = kCta.n / 4;
  const int step = Config::kThreads * work.splits;
  for (int i = static_cast<int>(threadIdx.x + part * Config::kThreads); i < kCta.m * kQuads; i += step) {
    const int row = i / kQuads, col = i % kQuads * 4;
    if (tile.row + row >= M) break;
    if (tile.col + col >= N) continue;
    float sum[4] = {};
    for (int rank = 0; rank < work.splits; ++rank) {
      const float* s_row = smem.sums.rows[row] + col;
      const float4 quad = *reinterpret_cast<const float4*>(work.splits > 1 ? ptx::map_shared_rank(s_row, rank) : s_row);
      sum[0] += quad.x;
      sum[1] += quad.y;
      sum[2] += quad.z;
      sum[3] += quad.w;
    }
    epilogue.store4(tile.batch, tile.row + row, tile.col + col, N, sum);
  }
  if (work.splits > 1) ptx::cluster_sync();  // the others may still read
}

TmaOperand tokens(const Problem& p) { return {p, true, false, 1, kPackedTileK}; }

template <class Config>
int64_t workspace_bytes(const Problem& p) {
  return tokens(p).workspace_bytes();
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
  const Work work(p, kTile);
  const int64_t tiles_k = (p.K + kPackedTileK - 1) / kPackedTileK, words = tiles_k * kPackedTileBytes / 4;
  constexpr int kUnit = kTile.k;
  const int64_t group = p.codes.group_size;
  const int segments = group >= p.K || group % kUnit == 0 ? 1 : group % (kUnit / 2) == 0 ? 2 : Config::kMostSegments;
  const auto parameters = [&](const void* data, DType dtype) {
    return TensorBox{.data = data,
                     .dtype = dtype,
                     .inner = p.N,
                     .outer = work.groups * p.batch,
                     .outer_stride = p.N,
                     .box_inner = kTile.n,
                     .box_outer = segments};
  };
  Maps maps = {};
  if (p.K > 0) {
    for (const auto& [map, box] : {std::pair{&maps.tokens, operand_box(x, p.lhs_dtype, operand.view(), p.batch, kTile.m,
                                                                       kPackedTileK, ptx::Swizzle::k128B)},
                                   std::pair{&maps.codes, TensorBox{.data = args.rhs,
                                                                    .dtype = DType::kS32,
                                                                    .inner = words,
                                                                    .outer = work.tiles_n * p.batch,
                                                                    .outer_stride = words,
                                                                    .box_inner = Config::kHalves * kPackedTileBytes / 4,
                                                                    .box_outer = kTile.n / kPackedTileN,
                                                                    .streams = true}},
                                   std::pair{&maps.scales, parameters(args.scales, p.codes.scale_dtype)},
                                   std::pair{&maps.zeros, parameters(args.zeros, DType::kS8)}}) {
      if (map == &maps.zeros && p.codes.zeros == Zeros::kMiddle) continue;
      if (std::string error = encode_tensor_map(*map, box); !error.empty()) return error;
    }
  }
  const auto launch_for = [&]<class T, bool kZeros, int kSegments>() {
    return launch_clusters(work.splits, int4_wgmma_kernel<Config, T, kZeros, kSegments>,
                           work.grid.ctas(p.batch) * work.splits, Config::kThreads, describe<Config>().smem_bytes,
                           args.stream, maps, work, Epilogue(args), p.M, p.N);
  };
  const auto launch_with = [&]<class T, bool kZeros>() {
    if (segments == 1) return launch_for.template operator()<T, kZeros, 1>();
    if (segments == 2) return launch_for.template operator()<T, kZeros, 2>();
    return launch_for.template operator()<T, kZeros, Config::kMostSegments>();
  };
  const auto launch_of = [&]<class T>() {
    return p.codes.zeros == Zeros::kMiddle ? launch_with.template operator()<T, false>()
                                           : launch_with.template operator()<T, true>();
  };
  return p.lhs_dtype == DType::kF16 ? launch_of.template operator()<__half>()
                                    : launch_of.template operator()<__nv_bfloat16>();
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes<Config>, &workspace_bytes<Config>};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(int4_wgmma, &kKernel<Config16x64>, &kKernel<Config16x256>, &kKernel<Config32x64>,
               &kKernel<Config32x128x128>, &kKernel<Config32x128x128_deep>, &kKernel<Config32x256>,
               &kKernel<Config64x64>, &kKernel<Config64x128x128>, &kKernel<Config64x128x128_deep>,
               &kKernel<Config64x256>, &kKernel<Config128x128>, &kKernel<Config256x128>)
