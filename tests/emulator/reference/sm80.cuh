// sm80: a GEMM on cp.async, ldmatrix and mma.sync as small as it can be, for the tests of the emulator. One kernel is
// as it should be; each of the others has one planted defect (sm80_defects.h).
//
// A ring of kStages stages holds k-tiles of both operands in the storage order that they have in global memory; where
// that is not the order of the fragments, ldmatrix transposes. Runs of neighbouring elements are made of 16-byte
// vectors, whose places are permuted (swizzled) such that the eight rows of a matrix lie in different banks.
#pragma once

#include <array>

#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared_storage.cuh"
#include "reference/sm80_defects.h"
#include "reference/store_element.cuh"
#include "tile/global_matrix.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

using sm80::Defect;

constexpr int kVectorElems = 8;
constexpr int kTileMn = 64, kTileK = 32;       // of both operands
constexpr int kWarpMn = 32, kWarpsPerRow = 2;  // warp tiles are square, and so is their grid
constexpr int kMmaM = 16, kMmaN = 8, kMmaK = 16;

constexpr std::array kCleanDTypes = {
    DTypes{DType::kF16, DType::kF16, DType::kF16}, DTypes{DType::kF16, DType::kF16, DType::kF32},
    DTypes{DType::kBF16, DType::kBF16, DType::kBF16}, DTypes{DType::kBF16, DType::kBF16, DType::kF32}};
constexpr std::array kDefectDTypes = {DTypes{DType::kBF16, DType::kBF16, DType::kF32}};

template <Defect kDefect>
struct Config {
  __host__ __device__ static constexpr bool has(Defect defect) { return defect == kDefect; }
  static constexpr std::string_view kFamily = sm80::family_name(kDefect);
  static constexpr std::span<const DTypes> kDTypes =
      has(Defect::kNone) ? std::span<const DTypes>(kCleanDTypes) : std::span<const DTypes>(kDefectDTypes);
  static constexpr Tile kCtaTile = {kTileMn, kTileMn, kTileK}, kWarpTile = {kWarpMn, kWarpMn, kTileK};
  static constexpr int kStages = 3, kThreads = kWarpsPerRow * kWarpsPerRow * 32;
  struct SharedStorage {
    struct {
      alignas(16) uint16_t lhs[kTileMn * kTileK], rhs[kTileMn * kTileK];  // bits of float16 or bfloat16
    } stages[kStages];
  };
};

// An operand's tile in shared memory: runs of elements that are neighbours in global memory, along M or N if
// kMnContiguous, else along K.
template <class Config, bool kMnContiguous>
struct TileLayout {
  static constexpr int kRuns = kMnContiguous ? kTileK : kTileMn;
  static constexpr int kVectorsPerRun = kTileMn * kTileK / kRuns / kVectorElems;

  // Where a vector begins, in elements. Eight runs that are neighbours have the same vector in eight different places
  // of a line of 128 bytes, which is as wide as all banks.
  __device__ static int offset(int run, int vector) {
    constexpr int kRunsPerLine = 8 / kVectorsPerRun;
    constexpr int kPlaces = Config::has(Defect::kPoorSwizzle) ? kVectorsPerRun / 2 : kVectorsPerRun;
    return (run * kVectorsPerRun + (vector ^ run / kRunsPerLine % kPlaces)) * kVectorElems;
  }
};

__device__ int clamp(int64_t x, int max) { return x < 0 ? 0 : x < max ? static_cast<int>(x) : max; }

// Copies a tile, of which the first runs_left runs and their first elems_left elements exist; the rest is zeros.
// `vectors` promises that the runs begin at multiples of 16 bytes.
template <class Config, bool kMnContiguous, class T>
__device__ void load_tile(uint16_t* s_tile, const T* g_tile, int64_t ld, int runs_left, int elems_left, bool vectors) {
  using Layout = TileLayout<Config, kMnContiguous>;
  constexpr int kVectors = Layout::kRuns * Layout::kVectorsPerRun;
  static_assert(kVectors % Config::kThreads == 0);
#pragma unroll
  for (int i = 0; i < kVectors / Config::kThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * Config::kThreads;
    const int run = at / Layout::kVectorsPerRun, vector = at % Layout::kVectorsPerRun;
    const bool exists = run < runs_left || Config::has(Defect::kSourcePastEnd);
    constexpr int kMost = Config::has(Defect::kSizeNotClamped) ? kTileMn : kVectorElems;
    const int valid = exists ? clamp(elems_left - vector * kVectorElems, kMost) : 0;
    if (Config::has(Defect::kTailNotZeroed) && valid == 0) continue;
    const T* g_vector = g_tile + run * ld + vector * kVectorElems;
    uint16_t* s_vector = s_tile + Layout::offset(run, vector);
    if (vectors) {
      ptx::cp_async_16(s_vector, g_vector, valid * static_cast<int>(sizeof(T)));
      continue;
    }
    alignas(16) uint16_t bits[kVectorElems];
#pragma unroll
    for (int j = 0; j < kVectorElems; ++j) {
      bits[j] = j < valid ? reinterpret_cast<const uint16_t*>(g_vector)[j] : uint16_t{0};
    }
    *reinterpret_cast<uint4*>(s_vector) = *reinterpret_cast<const uint4*>(bits);
  }
}

// Loads 16 x 16 elements from (mn, k) on. As rows of lhs they are an A fragment: its registers go along M first. As
// columns of rhs they are two B fragments of 8 columns each, which go along K first.
template <class Config, bool kMnContiguous, bool kIsLhs>
__device__ void load_fragment(uint32_t (&r)[4], const uint16_t* s_tile, int mn, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, row = lane % 8;
  constexpr bool kMnFirst = kIsLhs && !Config::has(Defect::kLhsQuartersSwapped);
  mn += (kMnFirst ? matrix % 2 : matrix / 2) * 8;
  k += (kMnFirst ? matrix / 2 : matrix % 2) * 8;
  const int run = (kMnContiguous ? k : mn) + row;
  const int vector = (kMnContiguous ? mn : k) / kVectorElems ^ (Config::has(Defect::kLoadSwizzleDiffers) ? 1 : 0);
  const uint16_t* s_row = s_tile + TileLayout<Config, kMnContiguous>::offset(run, vector);
  if constexpr (Config::has(Defect::kMisalignedRow)) s_row += kVectorElems / 2;
  ptx::ldmatrix<kMnContiguous != (kIsLhs && Config::has(Defect::kWrongTranspose))>(r, s_row);
}

// accumulators += lhs * rhs of one stage, for the warp tile that starts at row m and column n of the CTA tile.
template <class Config, class T, bool kLhsTransposed, bool kRhsTransposed>
__device__ void multiply(float (&accumulators)[kWarpMn / kMmaM][kWarpMn / kMmaN][4], const uint16_t* s_lhs,
                         const uint16_t* s_rhs, int m, int n) {
#pragma unroll
  for (int k = 0; k < kTileK; k += kMmaK) {
    uint32_t r_lhs[kWarpMn / kMmaM][4];
#pragma unroll
    for (int i = 0; i < kWarpMn / kMmaM; ++i) {
      load_fragment<Config, kLhsTransposed, true>(r_lhs[i], s_lhs, m + i * kMmaM, k);
    }
#pragma unroll
    for (int j = 0; j < kWarpMn / kMmaN; j += 2) {
      uint32_t r_rhs[4];
      const int rhs_k = Config::has(Defect::kSlicesSwapped) ? kTileK - kMmaK - k : k;
      load_fragment<Config, !kRhsTransposed, false>(r_rhs, s_rhs, n + j * kMmaN, rhs_k);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t r_b[2] = {r_rhs[2 * half], r_rhs[2 * half + 1]};
        if constexpr (Config::has(Defect::kRhsHalvesSwapped)) {
          r_b[0] = r_rhs[2 * half + 1];
          r_b[1] = r_rhs[2 * half];
        }
        if (Config::has(Defect::kLaneSkipsMma) && threadIdx.x % 32 == 31) continue;
#pragma unroll
        for (int i = 0; i < kWarpMn / kMmaM; ++i) ptx::mma_m16n8k16<T>(accumulators[i][j + half], r_lhs[i], r_b);
      }
    }
  }
}

// Stores the warp tile whose first element is (row, col) of out.
template <class Config>
__device__ void store(const Epilogue& epilogue, const float (&accumulators)[kWarpMn / kMmaM][kWarpMn / kMmaN][4],
                      int64_t batch, int64_t row, int64_t col, int64_t M, int64_t N) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kWarpMn / kMmaM; ++i) {
#pragma unroll
    for (int j = 0; j < kWarpMn / kMmaN; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = Config::has(Defect::kRowHalvesSwapped) ? 1 - e / 2 : e / 2;
        const int64_t m = row + i * kMmaM + half * 8 + lane / 4;
        const int64_t n = col + j * kMmaN + lane % 4 * 2 + e % 2;
        const bool in_rows = m < M || Config::has(Defect::kNoRowMask);
        if (!in_rows || n >= N) continue;
        store_element(epilogue, batch, m, n + (Config::has(Defect::kColumnOffByOne) ? 1 : 0), accumulators[i][j][e]);
      }
    }
  }
}

template <class Config, class T, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads)
    sm80_kernel(GlobalMatrix<T, kLhsTransposed> g_lhs, GlobalMatrix<T, kRhsTransposed> g_rhs, bool lhs_vectors,
                bool rhs_vectors, Epilogue epilogue, TileGrid grid, int64_t M, int64_t N, int64_t K) {
  constexpr int kStages = Config::kStages;
  auto& stages = shared_storage<typename Config::SharedStorage>().stages;
  const TileCoord tile = grid.tile(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = warp / kWarpsPerRow * kWarpMn, warp_n = warp % kWarpsPerRow * kWarpMn;
  const int m_left = clamp(M - tile.row, kTileMn), n_left = clamp(N - tile.col, kTileMn);
  const int64_t k_tiles = (K + (Config::has(Defect::kDropsTail) ? 0 : kTileK - 1)) / kTileK;
  if (Config::has(Defect::kEarlyExit) && tile.row + warp_m >= M) return;

  const auto load = [&](int64_t k_tile, int64_t stage) {
    const int64_t k = k_tile * kTileK;
    const int k_left = clamp(K - k, kTileK);
    load_tile<Config, kLhsTransposed>(stages[stage].lhs, g_lhs.at(tile.batch, tile.row, k), g_lhs.ld,
                                      kLhsTransposed ? k_left : m_left, kLhsTransposed ? m_left : k_left, lhs_vectors);
    load_tile<Config, !kRhsTransposed>(stages[stage].rhs, g_rhs.at(tile.batch, k, tile.col), g_rhs.ld,
                                       kRhsTransposed ? n_left : k_left, kRhsTransposed ? k_left : n_left, rhs_vectors);
  };
  // All loads of one k-tile are one group, and k-tiles that do not exist are empty groups.
  const auto load_next = [&](int64_t k_tile) {
    const int64_t next = k_tile + kStages - 1;
    const int64_t stage = Config::has(Defect::kOverwritesReadStage) ? k_tile % kStages : next % kStages;
    if (next < k_tiles || Config::has(Defect::kLoadsPastLastTile)) load(next, stage);
    if constexpr (!Config::has(Defect::kNoCommit)) ptx::cp_async_commit();
  };

  float accumulators[kWarpMn / kMmaM][kWarpMn / kMmaN][4];
#pragma unroll
  for (auto& row : accumulators) {
#pragma unroll
    for (auto& accumulator : row) {
#pragma unroll
      for (float& sum : accumulator) sum = Config::has(Defect::kAccumulatorNotZeroed) ? 1.0f : 0.0f;
    }
  }
  const auto multiply_stage = [&](int64_t k_tile) {
    const int64_t stage = (k_tile + (Config::has(Defect::kReadsNextStage) ? 1 : 0)) % kStages;
    multiply<Config, T, kLhsTransposed, kRhsTransposed>(accumulators, stages[stage].lhs, stages[stage].rhs, warp_m,
                                                        warp_n);
  };

  constexpr int kAhead =
      kStages - 1 + (Config::has(Defect::kPrologueTooLong) ? 1 : 0) - (Config::has(Defect::kPrologueTooShort) ? 1 : 0);
  for (int stage = 0; stage < kAhead; ++stage) {
    if (stage < k_tiles) load(stage, stage);
    ptx::cp_async_commit();
  }
  for (int64_t k_tile = 0; k_tile < k_tiles; ++k_tile) {
    if constexpr (Config::has(Defect::kReadsBeforeWait)) multiply_stage(k_tile);
    if constexpr (Config::has(Defect::kBarrierBeforeWait)) __syncthreads();
    if constexpr (Config::has(Defect::kLoadsBeforeBarrier)) load_next(k_tile);
    // This k-tile's group is complete: kStages - 1 groups have been issued from it on.
    ptx::cp_async_wait<kStages - 2 + (Config::has(Defect::kWaitsForOneFewer) ? 1 : 0) +
                       (Config::has(Defect::kLoadsBeforeBarrier) ? 1 : 0)>();
    // Now everyone's copies are, and nobody reads the stage any more that is loaded next.
    const bool skipped = Config::has(Defect::kNoBarrier) || Config::has(Defect::kBarrierBeforeWait) ||
                         (Config::has(Defect::kWarpSkipsBarrier) && warp == 1);
    if (!skipped) __syncthreads();
    if constexpr (!Config::has(Defect::kLoadsBeforeBarrier)) load_next(k_tile);
    if constexpr (!Config::has(Defect::kReadsBeforeWait)) multiply_stage(k_tile);
  }
  store<Config>(epilogue, accumulators, tile.batch, tile.row + warp_m, tile.col + warp_n, M, N);
}

// Whether every run of the operand begins at a multiple of 16 bytes.
bool made_of_vectors(const void* data, const MatrixView& view) {
  return reinterpret_cast<uintptr_t>(data) % sizeof(uint4) == 0 && view.ld % kVectorElems == 0 &&
         view.batch_stride % kVectorElems == 0;
}

template <class Config, class T>
std::string launch_for(const GemmArgs& args) {
  const Problem& p = args.problem;
  const TileGrid grid(Config::kCtaTile, p.M, p.N);
  const bool lhs_vectors = made_of_vectors(args.lhs, p.lhs) || Config::has(Defect::kSourceMisaligned);
  const bool rhs_vectors = made_of_vectors(args.rhs, p.rhs) || Config::has(Defect::kSourceMisaligned);
  return dispatch_layout(p.layout(), [&]<bool kLhsTransposed, bool kRhsTransposed>() {
    return launch_kernel(sm80_kernel<Config, T, kLhsTransposed, kRhsTransposed>, grid.ctas(p.batch), Config::kThreads,
                         describe<Config>().smem_bytes, args.stream, GlobalMatrix<T, kLhsTransposed>(args.lhs, p.lhs),
                         GlobalMatrix<T, kRhsTransposed>(args.rhs, p.rhs), lhs_vectors, rhs_vectors, Epilogue(args),
                         grid, p.M, p.N, p.K);
  });
}

template <class Config>
std::string launch(const GemmArgs& args) {
  if constexpr (Config::has(Defect::kNone)) {
    if (args.problem.lhs_dtype == DType::kF16) return launch_for<Config, __half>(args);
  }
  return launch_for<Config, __nv_bfloat16>(args);
}

template <Defect kDefect>
constexpr Kernel kKernel = {describe<Config<kDefect>>(), &launch<Config<kDefect>>, &no_workspace};

}  // namespace
}  // namespace jaxgemm
