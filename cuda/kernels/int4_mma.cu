// int4_mma: rhs is 4-bit codes, which become numbers on their way from memory into the tensor cores.
//
// What is new against mma_multistage: few tokens (rows of lhs) are multiplied by many weights, so that reading the
// weights is what takes time, and how many instructions a weight costs. The operands change places: weights are A of
// mma.sync, whose rows are columns of rhs, and tokens are B, of which 8 are enough. Weights lie packed in the order of
// A's fragments (tile/packed.cuh): one load of 16 bytes brings a lane the codes of four fragments, past shared memory.
// A mask and a multiply-add turn a pair of codes into code - zero, exactly; the scale of a group is applied to the sums
// of its products, in float32. The next codes take the registers of the last ones as soon as these are numbers, so that
// most of a warp's loads are always under way. The warps of a CTA share K, each with a cp.async ring of its own for the
// tokens, so that nobody waits for the CTA before the end; where there are more tokens, several warps share a ring.
//
// Source: the register order of packed weights, Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel
// Inference on Large Language Models", arXiv:2408.11743, section 3; scaling sums instead of weights, DeepSeek-AI,
// "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.3.2.
#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "mainloop/sm80_token_ring.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared_storage.cuh"
#include "select_mixed.h"
#include "tile/global_matrix.cuh"
#include "tile/packed.cuh"
#include "tile/padding.h"
#include "tile/scheduler.cuh"
#include "tile/split_k.h"
#include "tile/staged_groups.cuh"

namespace jaxgemm {
namespace {

constexpr int kMmaM = 16, kMmaN = 8, kMmaK = 16;
constexpr int kVectorElems = kVectorBytes / 2;

// A warp multiplies ROW_TILES x 16 columns of rhs by all tokens of the CTA, a unit of UNIT x 64 rows at a time. CTAS:
// as in mma_multistage.
template <int TOKENS, int ROW_TILES, int WARPS_N, int WARPS_K, int STAGES, int CTAS, int UNIT, int GROUP = 32>
struct TileConfig {
  static constexpr std::string_view kFamily = "int4_mma";
  static constexpr auto kDTypes = kMixedDTypes;
  static constexpr bool kSplitK = true;
  static constexpr int kBits = 4, kGroupMultiple = GROUP, kRowTiles = ROW_TILES, kCtas = CTAS;
  static constexpr int kWarpsN = WARPS_N, kWarpsK = WARPS_K, kThreads = WARPS_N * WARPS_K * kWarpSize;
  static constexpr int kUnitTiles = UNIT, kUnitK = kUnitTiles * kPackedTileK;
  static constexpr Tile kWarpTile = {TOKENS, ROW_TILES * kMmaM, kUnitK};
  static constexpr Tile kCtaTile = {TOKENS, WARPS_N * kWarpTile.n, WARPS_K * kUnitK};
  static constexpr int kStages = STAGES;

  // Tokens of a unit, and what belongs to each warp's columns. A row more of banks than fits them once: eight rows then
  // start in different banks.
  template <class Scale>
  struct Stage {
    alignas(kVectorBytes) char rows[TOKENS][kUnitK * 2 + kVectorBytes];
    StagedGroups<Scale, kUnitK / GROUP, kWarpTile.n> groups[WARPS_N];
  };
  struct Sums {
    static constexpr int kStride = kCtaTile.n + 4;  // 4 modulo 16: a warp's fragments lie in different banks
    alignas(kVectorBytes) float rows[TOKENS][kStride];
  };
  template <class Scale>
  union Storage {
    Stage<Scale> stages[WARPS_K][STAGES];
    Sums sums[WARPS_K];  // when the K loop is over
  };
  // With scales of float32, which are rare, it is a little more, and fewer CTAs may fit.
  using SharedStorage = Storage<uint16_t>;
};

struct Config8x16x1024 : TileConfig<8, 1, 1, 4, 2, 6, 4> {};
struct Config8x16x2048 : TileConfig<8, 1, 1, 8, 2, 3, 4> {};
struct Config8x16x4096 : TileConfig<8, 1, 1, 16, 2, 1, 4, 64> {};
struct Config8x32x512 : TileConfig<8, 2, 1, 2, 2, 7, 4> {};
struct Config8x32x1024 : TileConfig<8, 2, 1, 4, 2, 4, 4> {};
struct Config8x32x2048 : TileConfig<8, 2, 1, 8, 2, 2, 4> {};
struct Config16x256 : TileConfig<16, 2, 8, 1, 3, 1, 4> {};
struct Config32x128 : TileConfig<32, 2, 4, 1, 3, 2, 4, 64> {};

// kSegments: in how many parts a unit's sums are scaled.
template <class Config, class T, Grouping kGrouping, int kSegments>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtas)
    int4_mma_kernel(GlobalMatrix<T, false> g_x, PackedCodes codes, GroupParameters groups, Epilogue epilogue,
                    float* g_partials, TileGrid grid, SplitK split, int64_t M, int64_t N, int64_t K) {
  constexpr Tile kCta = Config::kCtaTile;
  constexpr int kRowTiles = Config::kRowTiles, kTokenTiles = kCta.m / kMmaN;
  constexpr int kSegment = Config::kUnitK / kMmaK / kSegments;  // steps of K
  using Groups = WarpGroups<kGrouping, kRowTiles, kSegments, kSegment * kMmaK>;
  using Stage = Config::template Stage<typename Groups::Scale>;
  auto& smem = shared_storage<typename Config::template Storage<typename Groups::Scale>>();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp_n = warp % Config::kWarpsN, warp_k = warp / Config::kWarpsN;

  // With few tokens what comes before the first load counts: in the most frequent case it is short.
  const bool one_row = gridDim.x == static_cast<unsigned>(grid.tiles_n);  // of tiles, of one batch, with all of K
  TileCoord tile = {0, 0, static_cast<int64_t>(blockIdx.x) * kCta.n};
  int64_t first_k = 0, depth = K, batch_codes = 0, batch_groups = 0;
  const T* g_first = g_x.data;
  if (!one_row) {
    const SplitK::Unit unit = split.unit(blockIdx.x, K);
    tile = grid.tile(unit.tile);
    first_k = unit.k;
    depth = unit.depth;
    batch_codes = tile.batch * codes.batch_words();
    batch_groups = tile.batch * groups.batch_stride;
    g_first = g_x.at(tile.batch, tile.row, 0);
  }
  const int tokens = static_cast<int>(M - tile.row < kCta.m ? M - tile.row : kCta.m);
  const int last_token = tokens - 1, rows = static_cast<int>(K), end = static_cast<int>(first_k + depth);
  const int first = static_cast<int>(first_k) + warp_k * Config::kUnitK;
  const int64_t col = tile.col + warp_n * Config::kWarpTile.n;

  // Codes of the next 64 rows each. Where there are none, what was there before does no harm: it meets tokens that are
  // 0, or columns that are not written.
  uint4 words[kRowTiles][Config::kUnitTiles] = {};
  const uint4* g_codes[kRowTiles];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    g_codes[r] = codes.column(static_cast<int>(col / kPackedTileN) + r) + batch_codes +
                 first / kPackedTileK * PackedCodes::kLanes;
  }
  // Those of the unit of row k, which is so many words farther on.
  const auto load = [&](int r, int i, int k, int farther) {
    if (k < end && (i == 0 || k + i * kPackedTileK < rows)) {
      words[r][i] = ptx::load_once_16(g_codes[r] + farther + i * PackedCodes::kLanes);
    }
  };
#pragma unroll
  for (int i = 0; i < Config::kUnitTiles; ++i) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) load(r, i, first, 0);
  }

  const Groups of_warp(groups, batch_groups, col);
  const auto copy_groups = [&](auto& stage, int k) { of_warp.copy(stage.groups[warp_n], groups, k, rows); };
  TokenRing<Config, T, Stage> ring(smem.stages[warp_k], g_x, g_first, tokens, end, rows, first);
#pragma unroll
  for (int i = 0; i < Config::kStages - 1; ++i) ring.fill(i, first + i * kCta.k, copy_groups);

  float sums[kRowTiles][kTokenTiles][4] = {};
  const auto multiply = [&](const Stage& stage, int k) {
    const auto& s_groups = stage.groups[warp_n];
    float partial[kRowTiles][kTokenTiles][4];
    typename Groups::Loaded loaded;
    CodePairs<T> numbers[kRowTiles];
#pragma unroll
    for (int pair = 0; pair < Config::kUnitK / (2 * kMmaK); ++pair) {  // of steps, which one ldmatrix loads
      const int segment = pair * 2 / kSegment;
      const bool begins = pair * 2 % kSegment == 0, ends = (pair * 2 + 2) % kSegment == 0;
      if (begins) of_warp.load(loaded, groups, segment, k, rows);
      uint32_t b[kTokenTiles][4];
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const int row = t * kMmaN + lane % 8;
        ptx::ldmatrix<false>(b[t],
                             stage.rows[row < last_token ? row : last_token] + (pair * 4 + lane / 8) * kVectorBytes);
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int step = pair * 2 + j;
          const uint4& code = words[r][step / kPackedSteps];
          const uint32_t word[kPackedSteps] = {code.x, code.y, code.z, code.w};
          uint32_t a[4];
          if (begins && j == 0) numbers[r] = of_warp.template codes<T>(s_groups, groups, segment, r);
          numbers[r].fragment(a, word[step % kPackedSteps]);
          float scales[2];
          if (ends && j == 1) of_warp.scales(scales, loaded, s_groups, groups, segment, r);
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t) {
            if (begins && j == 0) {
#pragma unroll
              for (float& sum : partial[r][t]) sum = 0.0f;
            }
            const uint32_t b_step[2] = {b[t][j * 2], b[t][j * 2 + 1]};
            ptx::mma_m16n8k16<T>(partial[r][t], a, b_step);
            if (ends && j == 1) {
#pragma unroll
              for (int i = 0; i < 4; ++i) sums[r][t][i] += scales[i / 2] * partial[r][t][i];
            }
          }
        }
        // Their place is free for those of the next unit, which come while the others are multiplied.
        constexpr int kFarther = kCta.k / kPackedTileK * PackedCodes::kLanes;
        if ((pair * 2 + 2) % kPackedSteps == 0) load(r, pair * 2 / kPackedSteps, k + kCta.k, kFarther);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) g_codes[r] += kCta.k / kPackedTileK * PackedCodes::kLanes;
  };
  const int last = Config::kWarpsN == 1 ? end : end + warp_k * Config::kUnitK;  // as often in warps that meet
#pragma unroll 1
  for (int k = first; k < last; k += kCta.k) {
    const auto& stage = ring.wait();
    const auto refill = [&] { ring.refill(k + (Config::kStages - 1) * kCta.k, copy_groups); };
    if constexpr (Config::kStages == 2) refill();  // else there is time for it
    if (Config::kWarpsN == 1 || k < end) multiply(stage, k);
    if constexpr (Config::kStages > 2) refill();
  }

  ptx::cp_async_wait_all();
  __syncthreads();
  // Found again, not kept in registers while the sums need them.
  const TileCoord out_tile =
      one_row ? TileCoord{0, 0, static_cast<int64_t>(blockIdx.x) * kCta.n} : grid.tile(split.unit(blockIdx.x, K).tile);
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = t * kMmaN + lane % 4 * 2 + i % 2;
        const int n = warp_n * Config::kWarpTile.n + r * kMmaM + lane / 4 + i / 2 * 8;
        smem.sums[warp_k].rows[token][n] = sums[r][t][i] * CodePairs<T>::kFactor;
      }
    }
  }
  __syncthreads();
  constexpr int kQuads = kCta.n / 4;
  for (int i = static_cast<int>(threadIdx.x); i < kCta.m * kQuads; i += Config::kThreads) {
    const int row = i / kQuads, n = i % kQuads * 4;
    float sum[4] = {};
#pragma unroll
    for (int w = 0; w < Config::kWarpsK; ++w) {
      const float4 quad = *reinterpret_cast<const float4*>(smem.sums[w].rows[row] + n);
      sum[0] += quad.x;
      sum[1] += quad.y;
      sum[2] += quad.z;
      sum[3] += quad.w;
    }
    if (g_partials != nullptr) {
      float* g_tile = g_partials + static_cast<int64_t>(blockIdx.x) * kCta.m * kCta.n;
      *reinterpret_cast<float4*>(g_tile + row * kCta.n + n) = {sum[0], sum[1], sum[2], sum[3]};
    } else if (out_tile.row + row < M && out_tile.col + n < N) {
      epilogue.store4(out_tile.batch, out_tile.row + row, out_tile.col + n, N, sum);
    }
  }
}

bool whole_vectors(const MatrixView& x, const Problem& p) { return begins_at_vectors(x, size_bytes(p.lhs_dtype)); }

template <class Config>
int segments_of_unit(const Problem& p) {
  return scaled_parts(p.codes.group_size, p.K, Config::kUnitK, Config::kGroupMultiple);
}

Grouping grouping_of(const Codes& codes) {
  if (codes.scale_dtype == DType::kF32) return Grouping::kScales32;
  return codes.zeros == Zeros::kMiddle ? Grouping::kScales16 : Grouping::kScales16Zeros;
}

// Whether scales, and zero points, are staged, and have rows that do not begin at whole vectors.
template <class Config>
bool pads_groups(const Problem& p) {
  const bool staged = grouping_of(p.codes) != Grouping::kScales16 || segments_of_unit<Config>(p) > 1;
  return staged && p.N % GroupParameters::kOctet != 0 && p.K > 0;
}

template <class Config>
Copies copies(const Problem& p) {
  const auto padded = [&](const MatrixView& view, int64_t multiple, DType dtype) {
    return Copies{1, padded_bytes(padded_view(view, multiple), p.batch, size_bytes(dtype))};
  };
  Copies all;
  if (!whole_vectors(p.lhs, p)) all += padded(p.lhs, kVectorElems, p.lhs_dtype);
  if (pads_groups<Config>(p)) {
    const MatrixView view = GroupParameters::view(p);
    all += padded(view, GroupParameters::kPaddedMultiple, p.codes.scale_dtype);
    if (p.codes.zeros != Zeros::kMiddle) all += padded(view, GroupParameters::kPaddedMultiple, DType::kS8);
  }
  return all;
}

template <class Config>
int64_t workspace_bytes(const Problem& p) {
  return copies<Config>(p).bytes + SplitK(describe<Config>(), p, Config::kCtaTile).workspace_bytes(Config::kCtaTile);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  const Problem& p = args.problem;
  PaddableOperand x = {args.lhs, p.lhs}, scales = {args.scales, GroupParameters::view(p)};
  PaddableOperand zeros = {args.zeros, scales.view};
  char* workspace = static_cast<char*>(args.workspace);
  std::string error;
  const auto pad = [&](PaddableOperand& operand, int64_t multiple, DType dtype) {
    if (error.empty()) error = operand.pad(workspace, padded_view(operand.view, multiple), p, dtype, args.stream);
  };
  if (!whole_vectors(x.view, p)) pad(x, kVectorElems, p.lhs_dtype);
  if (pads_groups<Config>(p)) {
    pad(scales, GroupParameters::kPaddedMultiple, p.codes.scale_dtype);
    if (p.codes.zeros != Zeros::kMiddle) pad(zeros, GroupParameters::kPaddedMultiple, DType::kS8);
  }
  if (!error.empty()) return error;
  for (const void* data : {x.data, args.rhs, scales.data, zeros.data}) {
    if (!at_vector(data)) {
      return "lhs, rhs, scales or zeros is not at a multiple of 16 bytes";
    }
  }
  const SplitK split(describe<Config>(), p, Config::kCtaTile);
  float* partials = split.splits == 1 ? nullptr : reinterpret_cast<float*>(workspace);
  const auto launch_for = [&]<class T, Grouping kGrouping, int kSegments>() {
    using Scale = WarpGroups<kGrouping, Config::kRowTiles, kSegments, Config::kUnitK / kSegments>::Scale;
    return launch_kernel(int4_mma_kernel<Config, T, kGrouping, kSegments>, split.units(), Config::kThreads,
                         static_cast<int>(sizeof(typename Config::template Storage<Scale>)), args.stream,
                         GlobalMatrix<T, false>(x.data, x.view), PackedCodes(args), GroupParameters(p, scales, zeros),
                         Epilogue(args), partials, TileGrid(Config::kCtaTile, p.M, p.N), split, p.M, p.N, p.K);
  };
  constexpr int kMost = Config::kUnitK / Config::kGroupMultiple;
  const int segments = segments_of_unit<Config>(p);
  // What is left out would spill registers: in tiles of more than 8 tokens most groups where ptxas knows that all zero
  // points are in the middle, in tiles of more than 16 two groups with zero points.
  const auto launch_with = [&]<class T, Grouping kGrouping>() {
    constexpr bool kZeros = kGrouping == Grouping::kScales16Zeros;
    constexpr bool kOfTwo = !kZeros || Config::kWarpTile.m <= 16, kKnowsMiddle = Config::kWarpTile.m <= 8;
    if (segments == 1) return launch_for.template operator()<T, kGrouping, 1>();
    if constexpr (kOfTwo) {
      if (segments == 2) return launch_for.template operator()<T, kGrouping, 2>();
    }
    if constexpr (kMost > 4) {
      if (segments < kMost) return launch_for.template operator()<T, kGrouping, kMost / 2>();
    }
    return launch_for.template operator()<T, kKnowsMiddle ? kGrouping : Grouping::kScales16Zeros, kMost>();
  };
  const auto launch_of = [&]<class T>() {
    switch (grouping_of(p.codes)) {
      case Grouping::kScales16: return launch_with.template operator()<T, Grouping::kScales16>();
      case Grouping::kScales16Zeros: return launch_with.template operator()<T, Grouping::kScales16Zeros>();
      case Grouping::kScales32: break;
    }
    return launch_for.template operator()<T, Grouping::kScales32, kMost>();  // rare: in one way, which fits all
  };
  error = p.lhs_dtype == DType::kF16 ? launch_of.template operator()<__half>()
                                     : launch_of.template operator()<__nv_bfloat16>();
  if (!error.empty() || partials == nullptr) return error;
  return reduce_partial_tiles(args, Config::kCtaTile, split, partials, false);
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes<Config>, &copies<Config>};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(int4_mma, &kKernel<Config8x16x1024>, &kKernel<Config8x16x2048>, &kKernel<Config8x16x4096>,
               &kKernel<Config8x32x512>, &kKernel<Config8x32x1024>, &kKernel<Config8x32x2048>, &kKernel<Config16x256>,
               &kKernel<Config32x128>)
