// int4_tma: 4-bit weights and few tokens, all of which TMA brings.
//
// What is new against int4_mma: tokens, packed codes, scales and zero points come into a ring of stages by TMA, which
// two warps of producers tell what to copy, so that most of the shared memory is under way, and the others spend no
// instructions on it. A k-tile is four slices of 64 rows with a warp for each, which multiplies all of the CTA's
// columns by them, so that tokens leave shared memory once; k-tiles are those of two to four such sharers in turns.
// Narrow tiles are as many as multiprocessors where a matrix is small; wide ones read tokens less often. What comes
// after the last k-tile is short, as every instruction waits for the one before it: threads add up two neighbouring
// sums at a time, and know already where these go (epilogue/two_columns.cuh). CTAs stay: the ring fills while sums are
// written.
//
// Source: as int4_mma; PTX ISA, "Data Movement and Conversion Instructions: Tensor copy".
#include <algorithm>
#include <utility>

#include "epilogue/epilogue.cuh"
#include "epilogue/two_columns.cuh"
#include "launch.cuh"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "ptx/elect.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared_storage.cuh"
#include "ptx/tma.cuh"
#include "select_mixed.h"
#include "tile/packed_boxes.h"
#include "tile/scheduler.cuh"
#include "tile/tensor_map.h"
#include "tile/tma_operand.h"

namespace jaxgemm {
namespace {

constexpr int kMmaM = 16, kMmaN = 8, kRowBytes = 128, kChunkBytes = 16;
// Named barriers: the ring's barriers are initialised, for consumers and for the producer that did not do it; a tile's
// sums are all there, or all read.
constexpr int kReady = 1, kProducersReady = 2, kLeft = 3, kTaken = 4;

// ROW_TILES times 16 columns, SHARERS times kSlices warps.
template <int TOKENS, int ROW_TILES, int SHARERS, int STAGES>
struct TileConfig {
  static constexpr std::string_view kFamily = "int4_tma";
  static constexpr auto kDTypes = kMixedDTypes;
  static constexpr int kMinSm = 90, kMaxSm = 90, kBits = 4, kGroupMultiple = 32;
  static constexpr bool kTma = true;
  static constexpr int kSlices = 4, kTilesOfBox = 2, kBoxes = kSlices / kTilesOfBox;  // packed tiles along K
  static constexpr int kRowTiles = ROW_TILES, kTokenTiles = TOKENS / kMmaN, kSharers = SHARERS, kProducers = 2;
  static constexpr int kConsumers = kSlices * SHARERS, kConsumerThreads = kConsumers * kWarpSize;
  static constexpr int kThreads = kConsumerThreads + kProducers * kWarpSize;
  static constexpr Tile kWarpTile = {TOKENS, ROW_TILES * kMmaM, kPackedTileK};
  static constexpr Tile kCtaTile = {TOKENS, kWarpTile.n, kSlices * kPackedTileK};
  static constexpr int kStages = STAGES, kMostSegments = kCtaTile.k / kGroupMultiple;
  // A stage is always the same producer's and the same sharer's, who knows the phase that follows.
  static_assert(STAGES % kProducers == 0 && STAGES % SHARERS == 0);

  struct Stage {
    alignas(1024) char tokens[kSlices][TOKENS * kRowBytes];
    alignas(128) char codes[kBoxes][ROW_TILES][kTilesOfBox * kPackedTileBytes];
  };
  struct Groups {
    alignas(128) uint16_t scales[kMostSegments][kCtaTile.n];
    alignas(128) uint8_t zeros[kMostSegments][kCtaTile.n];
  };
  struct Sums {
    alignas(8) float rows[TOKENS][kCtaTile.n + 4];  // a warp's fragments lie in different banks
  };
  struct SharedStorage {
    Stage stages[STAGES];
    Groups groups[STAGES];
    Sums sums[kConsumers];
    alignas(8) ptx::Mbarrier full[STAGES], empty[STAGES];
  };
};

struct Maps {
  CUtensorMap tokens, codes, scales, zeros;
};

struct Work {
  TileGrid grid;
  Divisor by_group;
  int k_tiles, groups, tiles_n;  // of a tile; of a matrix, like the latter, which are packed ones along N
  int box_rows;                  // of tokens
  DType scale_dtype;
  unsigned batch;
  bool one_row;

  // Calls f(tile) for each tile of the CTA. Where they are one row, as with few tokens, it is found without delay.
  template <class F>
  __device__ void for_each_tile(F&& f) const {
    const auto tiles = static_cast<unsigned>(grid.tiles_n * grid.tiles_m) * batch;
#pragma unroll 1
    for (unsigned i = blockIdx.x; i < tiles; i += gridDim.x) {
      f(one_row ? TileCoord{0, 0, static_cast<int64_t>(i) * grid.cta_n} : grid.tile(i));
    }
  }
};

// The stages that are one producer's, or one sharer's: each kStep-th.
template <int kStep, int kStages>
struct Ring {
  int stage;
  uint32_t parity = 0;

  __device__ void advance() {
    stage += kStep;
    if (stage < kStages) return;
    stage -= kStages;
    parity ^= 1u;
  }
};

// By one thread: the k-tiles that are its producer's.
template <class Config, bool kZeros, int kSegments>
__device__ void bring(const Maps& maps, const Work& work, typename Config::SharedStorage& smem, int producer) {
  constexpr uint32_t kParameters = kSegments * Config::kCtaTile.n;
  constexpr uint32_t kBytes =
      sizeof(Config::Stage::codes) + kParameters * (sizeof(uint16_t) + (kZeros ? sizeof(uint8_t) : 0));
  const uint32_t bytes = kBytes + static_cast<uint32_t>(Config::kSlices * work.box_rows * kRowBytes);
  constexpr int kWordsOfTile = kPackedTileBytes / sizeof(int32_t);
  Ring<Config::kProducers, Config::kStages> ring{producer};
  int next = producer;  // of the tile's k-tiles
  work.for_each_tile([&](const TileCoord& tile) {
    const int batch = static_cast<int>(tile.batch), row = static_cast<int>(tile.row), col = static_cast<int>(tile.col);
    const int tile_n = batch * work.tiles_n + col / kPackedTileN, first_group = batch * work.groups;
#pragma unroll 1
    for (; next < work.k_tiles; next += Config::kProducers) {
      const int k = next * Config::kCtaTile.k;
      auto& stage = smem.stages[ring.stage];
      auto& groups = smem.groups[ring.stage];
      auto& full = smem.full[ring.stage];
      ptx::mbarrier_wait(smem.empty[ring.stage], ring.parity ^ 1u);
      ptx::mbarrier_arrive_expect_tx(full, bytes);
#pragma unroll
      for (int box = 0; box < Config::kBoxes; ++box) {
        const int tile_k = k / kPackedTileK + box * Config::kTilesOfBox;
        ptx::tma_load_2d(stage.codes[box], maps.codes, full, tile_k * kWordsOfTile, tile_n);
      }
      const int group = first_group + static_cast<int>(work.by_group.divide(static_cast<unsigned>(k)).quotient);
      ptx::tma_load_2d(groups.scales, maps.scales, full, col, group);
      if constexpr (kZeros) ptx::tma_load_2d(groups.zeros, maps.zeros, full, col, group);
#pragma unroll
      for (int slice = 0; slice < Config::kSlices; ++slice) {
        ptx::tma_load_3d(stage.tokens[slice], maps.tokens, full, k + slice * kPackedTileK, row, batch);
      }
      ring.advance();
    }
    next -= work.k_tiles;
  });
}

// What a warp does with its slice of a k-tile. kSegments: groups that the k-tile has, whose scales are then different.
template <class Config, class T, bool kZeros, int kSegments>
struct SliceMultiplier {
  static constexpr int kRowTiles = Config::kRowTiles, kTokenTiles = Config::kTokenTiles, kSlices = Config::kSlices;
  static constexpr int kGroups = kSegments > kSlices ? kSegments / kSlices : 1;  // of the slice
  static constexpr int kStepsOfGroup = kPackedSteps / kGroups;
  static constexpr int kStepsOfLoad = kTokenTiles == 1 ? 2 : 1;  // four matrices are those of one step of 16 tokens
  static_assert(kTokenTiles <= 2);
  using Sums = float[kRowTiles][kTokenTiles][4];

  const int slice, lane, last_token;  // the latter: of those that are copied
  const DType scale_dtype;

  __device__ int segment(int group) const {
    return kSegments > kSlices ? slice * kGroups + group : slice * kSegments / kSlices;
  }

  __device__ void operator()(Sums& sums, const typename Config::Stage& stage,
                             const typename Config::Groups& groups) const {
    uint4 words[kRowTiles];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const char* tile = stage.codes[slice / Config::kTilesOfBox][r] + slice % Config::kTilesOfBox * kPackedTileBytes;
      words[r] = reinterpret_cast<const uint4*>(tile)[lane];
    }
    const int row = kTokenTiles == 1 ? lane % 8 : lane / 16 * 8 + lane % 8, token = row < last_token ? row : last_token;
    const int chunk = kTokenTiles == 1 ? lane / 8 : lane / 8 % 2;  // the first one that the lane gives the address of
    uint32_t b[kPackedSteps / kStepsOfLoad][4];
#pragma unroll
    for (int i = 0; i < kPackedSteps / kStepsOfLoad; ++i) {
      const int swizzled = (i * kStepsOfLoad * 2 + chunk) ^ (token % 8);
      ptx::ldmatrix<false>(b[i], stage.tokens[slice] + token * kRowBytes + swizzled * kChunkBytes);
    }
    // Groups inside: outside, registers spill where a slice has two.
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        float scales[2];
        uint32_t zeros[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int column = r * kMmaM + h * kColumnDistance + lane / 4;
          scales[h] = ptx::widen(groups.scales[segment(group)][column], scale_dtype == DType::kF16);
          zeros[h] = kZeros ? groups.zeros[segment(group)][column] : kMiddle;
          if (zeros[h] > kMostZero) zeros[h] = kMostZero;
        }
        const CodePairs<T> pairs = kZeros ? CodePairs<T>(zeros[0], zeros[1]) : CodePairs<T>();
        const uint32_t word[kPackedSteps] = {words[r].x, words[r].y, words[r].z, words[r].w};
        float products[kTokenTiles][4] = {};
#pragma unroll
        for (int step = group * kStepsOfGroup; step < (group + 1) * kStepsOfGroup; ++step) {
          uint32_t a[4];
          pairs.fragment(a, word[step]);
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t) {
            const int first = (kTokenTiles == 1 ? step % 2 : t) * 2;
            const uint32_t tokens[2] = {b[step / kStepsOfLoad][first], b[step / kStepsOfLoad][first + 1]};
            ptx::mma_m16n8k16<T>(products[t], a, tokens);
          }
        }
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[r][t][i] += scales[i / 2] * products[t][i];
        }
      }
    }
  }
};

// Two neighbouring columns of a tile's sums, which one thread adds up: the INDEX-th of its pairs.
template <class Config>
struct PairOfSums {
  static constexpr int kOfRow = Config::kCtaTile.n / 2, kOfTile = Config::kCtaTile.m * kOfRow,
                       kOfThread = (kOfTile + Config::kConsumerThreads - 1) / Config::kConsumerThreads;
  const int row, column;
  const TwoColumns out;

  __device__ PairOfSums(int index, const TileCoord& tile, const Epilogue& epilogue, int64_t N)
      : row((index * Config::kConsumerThreads + static_cast<int>(threadIdx.x)) / kOfRow),
        column((index * Config::kConsumerThreads + static_cast<int>(threadIdx.x)) % kOfRow * 2),
        out(epilogue, tile.batch, tile.row + row, tile.col + column, N) {}

  __device__ void store(const typename Config::Sums (&sums)[Config::kConsumers], const TileCoord& tile,
                        int64_t M) const {
    if (row >= Config::kCtaTile.m || tile.row + row >= M) return;
    float sum[2] = {};
#pragma unroll
    for (const auto& of_warp : sums) {
      const float2 pair = *reinterpret_cast<const float2*>(of_warp.rows[row] + column);
      sum[0] += pair.x;
      sum[1] += pair.y;
    }
    out.store(sum);
  }
};

template <class Config, class T, bool kZeros, int kSegments>
__global__ void __launch_bounds__(Config::kThreads, 1)
    int4_tma_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Work work,
                    const __grid_constant__ Epilogue epilogue, int64_t M, int64_t N) {
  auto& smem = shared_storage<typename Config::SharedStorage>();
  // As the compiler sees it, the same for all lanes.
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / kWarpSize, 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if (warp >= Config::kConsumers) {
    const int producer = warp - Config::kConsumers;
    if (producer == 0 && ptx::elect_one()) {
      for (int i = 0; i < Config::kStages; ++i) {
        ptx::mbarrier_init(smem.full[i], 1);
        ptx::mbarrier_init(smem.empty[i], Config::kSlices);
      }
      ptx::fence_mbarrier_init();
    }
    __syncwarp();
    ptx::barrier_arrive(kReady, Config::kThreads);
    if (producer == 0) {
      ptx::barrier_arrive(kProducersReady, Config::kProducers * kWarpSize);
    } else {
      ptx::barrier_sync(kProducersReady, Config::kProducers * kWarpSize);
    }
    if (ptx::elect_one()) bring<Config, kZeros, kSegments>(maps, work, smem, producer);
    return;
  }

  ptx::barrier_sync(kReady, Config::kThreads);
  const int sharer = warp / Config::kSlices;
  const SliceMultiplier<Config, T, kZeros, kSegments> multiply = {warp % Config::kSlices, lane, work.box_rows - 1,
                                                                  work.scale_dtype};
  Ring<Config::kSharers, Config::kStages> ring{sharer};
  int next = sharer;  // of the tile's k-tiles
  bool first = true;
  work.for_each_tile([&](const TileCoord& tile) {
    float sums[Config::kRowTiles][Config::kTokenTiles][4] = {};
#pragma unroll 1
    for (; next < work.k_tiles; next += Config::kSharers) {
      ptx::mbarrier_wait(smem.full[ring.stage], ring.parity);
      multiply(sums, smem.stages[ring.stage], smem.groups[ring.stage]);
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(smem.empty[ring.stage]);
      ring.advance();
    }
    next -= work.k_tiles;

    if (!first) ptx::barrier_sync(kTaken, Config::kConsumerThreads);
    first = false;
#pragma unroll
    for (int r = 0; r < Config::kRowTiles; ++r) {
#pragma unroll
      for (int t = 0; t < Config::kTokenTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          smem.sums[warp].rows[t * kMmaN + lane % 4 * 2 + i % 2][r * kMmaM + lane / 4 + i / 2 * kColumnDistance] =
              sums[r][t][i] * CodePairs<T>::kFactor;
        }
      }
    }
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
      const PairOfSums<Config> pairs[] = {{kIndex, tile, epilogue, N}...};
      ptx::barrier_sync(kLeft, Config::kConsumerThreads);
#pragma unroll
      for (const auto& pair : pairs) pair.store(smem.sums, tile, M);
    }(std::make_integer_sequence<int, PairOfSums<Config>::kOfThread>());
  });
}

TmaOperand tokens(const Problem& p) { return {p, true, false, 1, kPackedTileK}; }

Copies copies(const Problem& p) { return tokens(p).copies(); }

int64_t workspace_bytes(const Problem& p) { return copies(p).bytes; }

template <class Config>
std::string launch(const GemmArgs& args) {
  const Problem& p = args.problem;
  const TmaOperand operand = tokens(p);
  const void* x = args.lhs;
  char* workspace = static_cast<char*>(args.workspace);
  if (std::string error = operand.prepare(x, workspace, args.stream); !error.empty()) return error;

  constexpr Tile kTile = Config::kCtaTile;
  // TMA takes four times as long for a row outside of the tensor as for one inside. In the place of tokens that are not
  // there the last one is multiplied: those sums are not written.
  const int box_rows = static_cast<int>(std::min<int64_t>(kTile.m, p.M));
  const int segments = scaled_parts(p.codes.group_size, p.K, kTile.k, Config::kGroupMultiple);
  Maps maps = {};
  if (p.K > 0) {
    if (std::string error =
            encode_codes_maps(maps, args, {x, operand.view(), box_rows}, kTile, Config::kTilesOfBox, segments);
        !error.empty()) {
      return error;
    }
  }
  int64_t at_once = 0;
  if (std::string error = multiprocessors(at_once); !error.empty()) return error;
  const TileGrid grid(kTile, p.M, p.N);
  const Work work = {.grid = grid,
                     .by_group = Divisor(p.codes.group_size),
                     .k_tiles = static_cast<int>((p.K + kTile.k - 1) / kTile.k),
                     .groups = static_cast<int>(p.codes.groups(p.K)),
                     .tiles_n = static_cast<int>(packed_tiles_n(p)),
                     .box_rows = box_rows,
                     .scale_dtype = p.codes.scale_dtype,
                     .batch = static_cast<unsigned>(p.batch),
                     .one_row = grid.tiles_m == 1 && p.batch == 1};
  const auto launch_as = [&]<class T, bool kZeros, int kSegments>() {
    return launch_kernel(int4_tma_kernel<Config, T, kZeros, kSegments>, std::min(grid.ctas(p.batch), at_once),
                         Config::kThreads, describe<Config>().smem_bytes, args.stream, maps, work, Epilogue(args), p.M,
                         p.N);
  };
  return dispatch_codes<Config::kMostSegments>(p, segments, launch_as);
}

struct Config8x32 : TileConfig<8, 2, 4, 20> {};
struct Config8x48 : TileConfig<8, 3, 3, 18> {};
struct Config16x32 : TileConfig<16, 2, 4, 12> {};
struct Config16x48 : TileConfig<16, 3, 3, 12> {};
struct Config8x112 : TileConfig<8, 7, 2, 8> {};
struct Config16x112 : TileConfig<16, 7, 2, 6> {};

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes, &copies};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(int4_tma, &kKernel<Config8x32>, &kKernel<Config8x48>, &kKernel<Config8x112>, &kKernel<Config16x32>,
               &kKernel<Config16x48>, &kKernel<Config16x112>)
