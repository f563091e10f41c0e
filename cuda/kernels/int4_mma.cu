// int4_mma: rhs is 4-bit codes, which become numbers on their way from memory into the tensor cores.
//
// What is new against mma_multistage: few tokens (rows of lhs) are multiplied by many weights, so that reading the
// weights is what takes time, and how many instructions a weight costs. The operands change places: weights are A of
// mma.sync, whose rows are columns of rhs, and tokens are B, of which 8 are enough. Weights lie packed in the order of
// A's fragments (tile/packed.cuh): one load of 16 bytes brings a lane the codes of four fragments, past shared memory.
// A mask and a multiply-add turn a pair of codes into code - zero, exactly; the scale of a group is applied to the sums
// of its products, in float32. The warps of a CTA share K, each with a cp.async ring of its own for the tokens,
// so that nobody waits for the CTA before the end; where there are more tokens, several warps share a ring.
//
// Source: the register order of packed weights, Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel
// Inference on Large Language Models", arXiv:2408.11743, section 3; scaling sums instead of weights, DeepSeek-AI,
// "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.3.2.
#include <algorithm>

#include "epilogue/epilogue.cuh"
#include "launch.cuh"
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

namespace jaxgemm {
namespace {

constexpr int kWarpSize = 32, kMmaM = 16, kMmaN = 8, kMmaK = 16;
constexpr int kVectorBytes = 16, kVectorElems = kVectorBytes / 2;

// A warp multiplies ROW_TILES x 16 columns of rhs by all tokens of the CTA, a unit of UNIT x 64 rows at a time. CTAS:
// as in mma_multistage.
template <int TOKENS, int ROW_TILES, int WARPS_N, int WARPS_K, int STAGES, int CTAS, int UNIT = 2, int GROUP = 32>
struct TileConfig {
  static constexpr std::string_view kFamily = "int4_mma";
  static constexpr std::array<DTypes, 4> kDTypes = {{{DType::kF16, DType::kF16, DType::kF16},
                                                     {DType::kBF16, DType::kBF16, DType::kBF16},
                                                     {DType::kF16, DType::kF16, DType::kF32},
                                                     {DType::kBF16, DType::kBF16, DType::kF32}}};
  static constexpr bool kSplitK = true;
  static constexpr int kBits = 4, kGroupMultiple = GROUP, kRowTiles = ROW_TILES, kCtas = CTAS;
  static constexpr int kWarpsN = WARPS_N, kWarpsK = WARPS_K, kThreads = WARPS_N * WARPS_K * kWarpSize;
  static constexpr int kUnitTiles = UNIT, kUnitK = kUnitTiles * kPackedTileK;
  static constexpr Tile kWarpTile = {TOKENS, ROW_TILES * kMmaM, kUnitK};
  static constexpr Tile kCtaTile = {TOKENS, WARPS_N * kWarpTile.n, WARPS_K * kUnitK};
  static constexpr int kStages = STAGES;

  // Tokens of a unit. A row more of banks than fits them once: eight rows then start in different banks.
  struct Stage {
    alignas(kVectorBytes) char rows[TOKENS][kUnitK * 2 + kVectorBytes];
  };
  struct Sums {
    static constexpr int kStride = kCtaTile.n + 4;  // 4 modulo 16: a warp's fragments lie in different banks
    alignas(kVectorBytes) float rows[TOKENS][kStride];
  };
  union SharedStorage {
    Stage stages[WARPS_K][STAGES];
    Sums sums[WARPS_K];  // when the K loop is over
  };
};

struct Config8x16x1024 : TileConfig<8, 1, 1, 4, 2, 6, 4> {};
struct Config8x16x2048 : TileConfig<8, 1, 1, 16, 3, 2> {};
struct Config8x16x2048_long : TileConfig<8, 1, 1, 8, 2, 3, 4> {
  static constexpr std::string_view kSuffix = "_long";
};
struct Config8x32x512 : TileConfig<8, 2, 1, 4, 3, 7> {};
struct Config8x32x1024 : TileConfig<8, 2, 1, 8, 3, 3> {};
struct Config8x32x2048 : TileConfig<8, 2, 1, 16, 3, 1> {};
struct Config16x32x1024 : TileConfig<16, 2, 1, 8, 3, 2> {};
struct Config16x128 : TileConfig<16, 2, 4, 2, 4, 2> {};
struct Config32x128 : TileConfig<32, 2, 4, 2, 4, 1, 2, 64> {};

// The tokens that one share of K needs, as they come through shared memory. Each thread copies the same 16 bytes of a
// row of every unit.
template <class Config, class T>
struct TokenRing {
  static constexpr int kPieces = Config::kUnitK / kVectorElems, kSharers = Config::kWarpsN * kWarpSize;
  static constexpr int kRowsAtOnce = kSharers / kPieces;
  static constexpr int kRowsBytes = kRowsAtOnce * static_cast<int>(sizeof(Config::Stage::rows[0]));
  static_assert(kRowsAtOnce * kPieces == kSharers);

  typename Config::Stage* stages;
  const T* g_piece;
  char* s_piece;  // of the next stage to be filled
  int left;       // elements of K from the piece on; may be negative past the last unit
  int next = 0;   // stage to be read

  // From row k of rhs on; the first token is at g_x.
  __device__ TokenRing(typename Config::Stage* stages, const T* g_x, int64_t ld, int K, int k)
      : stages(stages), s_piece(stages[0].rows[row()] + thread() % kPieces * kVectorBytes) {
    const int at = k + thread() % kPieces * kVectorElems;
    g_piece = g_x + row() * ld + at;
    left = K - at;
  }

  // Begins the copy of the next unit, if it exists. Rows beyond the last token are not read; beyond K there are zeros,
  // for which PTX wants some address that is mapped.
  __device__ void fill(bool exists, int64_t ld, int tokens, const T* g_mapped) {
    if (exists) {
      char* s_to = s_piece;
      const T* g_from = g_piece;
      if (left >= kVectorElems) {
#pragma unroll 1
        for (int i = row(); i < tokens; i += kRowsAtOnce, s_to += kRowsBytes, g_from += kRowsAtOnce * ld) {
          ptx::cp_async_16(s_to, g_from);
        }
      } else {
#pragma unroll 1
        for (int i = row(); i < tokens; i += kRowsAtOnce, s_to += kRowsBytes, g_from += kRowsAtOnce * ld) {
          ptx::cp_async_16(s_to, left > 0 ? g_from : g_mapped, left > 0 ? left * 2 : 0);
        }
      }
    }
    ptx::cp_async_commit();
    g_piece += Config::kCtaTile.k;
    left -= Config::kCtaTile.k;
    s_piece += sizeof(stages[0]);
  }

  // Waits for the oldest unit that has not been read.
  __device__ const typename Config::Stage& wait() const {
    ptx::cp_async_wait<Config::kStages - 2>();
    if constexpr (Config::kWarpsN == 1) {
      __syncwarp();
    } else {
      __syncthreads();  // not of those alone that share the stages: racecheck loses count of such barriers
    }
    return stages[next];
  }

  // After that, begins the copy of another one in the place of the one before.
  __device__ void refill(bool exists, int64_t ld, int tokens, const T* g_mapped) {
    if (next == 1) s_piece -= sizeof(typename Config::Stage[Config::kStages]);
    fill(exists, ld, tokens, g_mapped);
    next = next + 1 == Config::kStages ? 0 : next + 1;
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kSharers; }
  __device__ static int row() { return thread() / kPieces; }
};

// What is compiled for compute capability 8.0 takes a few registers more where there are zero points: a bound that
// leaves them, and none where they are not needed. How scales are converted (GroupParameters::scale): with more tokens
// or groups registers would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kMostCtasWithZeros = 2;
template <int kTokenTiles, int kSegments>
constexpr bool kPredicatedScales = false;
#else
constexpr int kMostCtasWithZeros = 32;  // of a multiprocessor
template <int kTokenTiles, int kSegments>
constexpr bool kPredicatedScales = kTokenTiles == 1 && kSegments <= 2;
#endif
template <class Config, Grouping kGrouping, int kSegments>
constexpr int kResidentCtas =
    std::min(kGrouping == Grouping::kScales16Zeros && Config::kRowTiles > 1 ? kMostCtasWithZeros : Config::kCtas,
             int4_mma_resident_ctas(Config::kCtas, Config::kWarpTile, kSegments, kGrouping == Grouping::kScales32,
                                    kGrouping == Grouping::kScales16Zeros));

// kSegments: in how many parts a unit's sums are scaled.
template <class Config, class T, Grouping kGrouping, int kSegments>
__global__ void __launch_bounds__(Config::kThreads, kResidentCtas<Config, kGrouping, kSegments>)
    int4_mma_kernel(GlobalMatrix<T, false> g_x, PackedCodes codes, GroupParameters groups, Epilogue epilogue,
                    float* g_partials, TileGrid grid, SplitK split, int64_t M, int64_t N, int64_t K) {
  constexpr Tile kCta = Config::kCtaTile;
  constexpr int kRowTiles = Config::kRowTiles, kTokenTiles = kCta.m / kMmaN;
  constexpr int kSegment = Config::kUnitK / kMmaK / kSegments;  // steps of K
  auto& smem = shared_storage<typename Config::SharedStorage>();
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
    batch_groups = tile.batch * groups.batch_elements();
    g_first = g_x.at(tile.batch, tile.row, 0);
  }
  const int tokens = static_cast<int>(M - tile.row < kCta.m ? M - tile.row : kCta.m);
  const int last_token = tokens - 1, rows = static_cast<int>(K), end = static_cast<int>(first_k + depth);
  const int first = static_cast<int>(first_k) + warp_k * Config::kUnitK;
  const int64_t col = tile.col + warp_n * Config::kWarpTile.n;

  using Parameters = QuadParameters<kGrouping, kRowTiles, kSegments, kPredicatedScales<kTokenTiles, kSegments>>;
  // Codes, scales and zero points of the next unit. Where there are none, what was there before does no harm: it meets
  // tokens that are 0, or columns that are not written.
  struct Unit {
    uint4 words[kRowTiles][Config::kUnitTiles];
    Parameters groups;
  } unit = {};
  const uint4* g_codes[kRowTiles];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    g_codes[r] = codes.column(static_cast<int>(col / kPackedTileN) + r) + batch_codes +
                 first / kPackedTileK * PackedCodes::kLanes;
  }
  const typename Parameters::Columns columns(groups, batch_groups, col);
  const auto load = [&](int k) {
    if (k >= end) return;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < Config::kUnitTiles; ++i) {
        if (i == 0 || k + i * kPackedTileK < rows) {
          unit.words[r][i] = ptx::load_once_16(g_codes[r] + i * PackedCodes::kLanes);
        }
      }
      g_codes[r] += kCta.k / kPackedTileK * PackedCodes::kLanes;
    }
    unit.groups.template load<kSegment * kMmaK>(columns, groups, k, rows);
  };
  load(first);

  TokenRing<Config, T> ring(smem.stages[warp_k], g_first, g_x.ld, rows, first);
#pragma unroll
  for (int i = 0; i < Config::kStages - 1; ++i) {
    ring.fill(first + i * kCta.k < end, g_x.ld, tokens, g_x.data);
  }

  float sums[kRowTiles][kTokenTiles][4] = {};
  const auto multiply = [&](const typename Config::Stage& stage) {
    float partial[kRowTiles][kTokenTiles][4];
    uint32_t zeros[kRowTiles][2];
#pragma unroll
    for (int pair = 0; pair < Config::kUnitK / (2 * kMmaK); ++pair) {  // of steps, which one ldmatrix loads
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
          const uint4& words = unit.words[r][step / kPackedSteps];
          const uint32_t word[kPackedSteps] = {words.x, words.y, words.z, words.w};
          if (step % kSegment == 0) unit.groups.ask_zeros(zeros[r], step / kSegment, r);
          uint32_t a[4];
          CodePairs<T>(zeros[r][0], zeros[r][1]).fragment(a, word[step % kPackedSteps]);
          float scales[2];
          if ((step + 1) % kSegment == 0) unit.groups.ask_scales(scales, groups, step / kSegment, r);
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t) {
            if (step % kSegment == 0) {
#pragma unroll
              for (float& sum : partial[r][t]) sum = 0.0f;
            }
            const uint32_t b_step[2] = {b[t][j * 2], b[t][j * 2 + 1]};
            ptx::mma_m16n8k16<T>(partial[r][t], a, b_step);
            if ((step + 1) % kSegment == 0) {
#pragma unroll
              for (int i = 0; i < 4; ++i) sums[r][t][i] += scales[i / 2] * partial[r][t][i];
            }
          }
        }
      }
    }
  };
  const int last = Config::kWarpsN == 1 ? end : end + warp_k * Config::kUnitK;  // as often in warps that meet
#pragma unroll 1
  for (int k = first; k < last; k += kCta.k) {
    const auto& stage = ring.wait();
    const auto refill = [&] { ring.refill(k + (Config::kStages - 1) * kCta.k < end, g_x.ld, tokens, g_x.data); };
    if constexpr (Config::kStages == 2) refill();  // else there is time for it
    if (Config::kWarpsN == 1 || k < end) multiply(stage);
    load(k + kCta.k);
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

bool reads_whole_vectors(const MatrixView& view) {
  return view.ld % kVectorElems == 0 && view.batch_stride % kVectorElems == 0;
}

template <class Config>
int64_t copied_bytes(const Problem& p) {
  if (reads_whole_vectors(p.lhs)) return 0;
  return padded_bytes(padded_view(p.lhs, kVectorElems), p.batch, size_bytes(p.lhs_dtype));
}

template <class Config>
int64_t workspace_bytes(const Problem& p) {
  return copied_bytes<Config>(p) + SplitK(describe<Config>(), p, Config::kCtaTile).workspace_bytes(Config::kCtaTile);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  const Problem& p = args.problem;
  PaddableOperand x = {args.lhs, p.lhs};
  char* workspace = static_cast<char*>(args.workspace);
  if (!reads_whole_vectors(x.view)) {
    if (std::string error = x.pad(workspace, kVectorElems, p, p.lhs_dtype, args.stream); !error.empty()) return error;
  }
  for (const void* data : {x.data, args.rhs}) {
    if (reinterpret_cast<uintptr_t>(data) % kVectorBytes != 0) return "lhs or rhs is not at a multiple of 16 bytes";
  }
  const SplitK split(describe<Config>(), p, Config::kCtaTile);
  float* partials = split.splits == 1 ? nullptr : reinterpret_cast<float*>(workspace);
  const auto launch_for = [&]<class T, Grouping kGrouping, int kSegments>() {
    return launch_kernel(int4_mma_kernel<Config, T, kGrouping, kSegments>, split.units(), Config::kThreads,
                         describe<Config>().smem_bytes, args.stream, GlobalMatrix<T, false>(x.data, x.view),
                         PackedCodes(args), GroupParameters(args), Epilogue(args), partials,
                         TileGrid(Config::kCtaTile, p.M, p.N), split, p.M, p.N, p.K);
  };
  constexpr int kMost = Config::kUnitK / Config::kGroupMultiple;
  const int segments = scaled_parts(p.codes.group_size, p.K, Config::kUnitK, Config::kGroupMultiple);
  const auto launch_with = [&]<class T, Grouping kGrouping>() {
    if (segments == 1) return launch_for.template operator()<T, kGrouping, 1>();
    if (segments == 2) return launch_for.template operator()<T, kGrouping, 2>();
    return launch_for.template operator()<T, kGrouping, kMost>();
  };
  const auto launch_of = [&]<class T>() {
    switch (GroupParameters(args).grouping()) {
      case Grouping::kScales16: return launch_with.template operator()<T, Grouping::kScales16>();
      case Grouping::kScales16Zeros: return launch_with.template operator()<T, Grouping::kScales16Zeros>();
      case Grouping::kScales32: break;
    }
    return launch_for.template operator()<T, Grouping::kScales32, kMost>();  // rare: in one way, which fits all
  };
  std::string error = p.lhs_dtype == DType::kF16 ? launch_of.template operator()<__half>()
                                                 : launch_of.template operator()<__nv_bfloat16>();
  if (!error.empty() || partials == nullptr) return error;
  return reduce_partial_tiles(args, Config::kCtaTile, split, partials, false);
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes<Config>, &copied_bytes<Config>};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(int4_mma, &kKernel<Config8x16x1024>, &kKernel<Config8x16x2048>, &kKernel<Config8x16x2048_long>,
               &kKernel<Config8x32x512>, &kKernel<Config8x32x1024>, &kKernel<Config8x32x2048>,
               &kKernel<Config16x32x1024>, &kKernel<Config16x128>, &kKernel<Config32x128>)
