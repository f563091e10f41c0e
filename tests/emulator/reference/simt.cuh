// simt: a float32 GEMM on plain loads and stores, for the tests of the emulator. One kernel is as it should be; each of
// the others has one planted defect (simt_defects.h).
//
// A CTA stages k-tiles in shared memory: all warps share that of rhs, each warp has the rows of lhs that it needs to
// itself. A lane computes one column of its warp's rows; shuffles then give it four neighbouring columns of some of
// them.
#pragma once

#include <array>

#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "ptx/shared_storage.cuh"
#include "reference/simt_defects.h"
#include "tile/global_matrix.cuh"
#include "tile/launch_tiles.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

using simt::Defect;

constexpr int kTile = 32, kWarps = 4, kRows = kTile / kWarps;  // rows of a warp
constexpr int kQuad = 4;

template <Defect kDefect>
struct Config {
  __host__ __device__ static constexpr bool has(Defect defect) { return defect == kDefect; }
  static constexpr std::string_view kFamily = simt::family_name(kDefect);
  static constexpr std::array kDTypes = {DTypes{DType::kF32, DType::kF32, DType::kF32}};
  static constexpr Tile kCtaTile = {kTile, kTile, kTile}, kWarpTile = {kRows, kTile, kTile};
  static constexpr int kStages = 1, kThreads = kWarps * 32;
  struct SharedStorage {
    alignas(16) float lhs[kWarps][kRows][kTile];
    float rhs[kTile * kTile];
  };
};

template <class Config>
__device__ int rhs_offset(int k, int n) {
  return Config::has(Defect::kBankConflicts) ? n * kTile + k : k * kTile + n;
}

// sums[r] += row r of the warp's rows of lhs * the lane's column of rhs.
template <class Config>
__device__ void multiply(float (&sums)[kRows], const float (&s_lhs)[kRows][kTile], const float* s_rhs, int lane) {
#pragma unroll
  for (int k = 0; k < kTile; k += kQuad) {
    float r_rhs[kQuad];
#pragma unroll
    for (int i = 0; i < kQuad; ++i) r_rhs[i] = s_rhs[rhs_offset<Config>(k + i, lane)];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int first = k + (Config::has(Defect::kMisalignedVector) ? 1 : 0);
      const float4 r_lhs = *reinterpret_cast<const float4*>(&s_lhs[r][first]);
      sums[r] = fmaf(r_lhs.x, r_rhs[0], sums[r]);
      sums[r] = fmaf(r_lhs.y, r_rhs[1], sums[r]);
      sums[r] = fmaf(r_lhs.z, r_rhs[2], sums[r]);
      sums[r] = fmaf(r_lhs.w, r_rhs[3], sums[r]);
    }
  }
}

// Stores the warp's rows, of which the first is `row` of out. Of each four lanes, which hold four neighbouring columns
// of four rows, each one gets all four columns of one row.
template <class Config>
__device__ void store(const Epilogue& epilogue, const float (&sums)[kRows], const TileCoord& tile, int64_t row,
                      int lane, int64_t M, int64_t N) {
  const int col = lane / kQuad * kQuad;
  if (Config::has(Defect::kDivergentShuffle) && tile.col + lane >= N) return;
#pragma unroll
  for (int first = 0; first < kRows; first += kQuad) {
    float quad[kQuad];
#pragma unroll
    for (int r = 0; r < kQuad; ++r) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        const int source = col + (Config::has(Defect::kWrongShuffleLane) ? (i + 1) % kQuad : i);
        const float sum = __shfl_sync(0xFFFFFFFFu, sums[first + r], source);
        if (lane % kQuad == r) quad[i] = sum;
      }
    }
    const int64_t m = row + first + lane % kQuad;
    const int64_t end = Config::has(Defect::kNoColumnMask) ? N + kQuad : N;
    if (m < M && tile.col + col < N) epilogue.store4(tile.batch, m, tile.col + col, end, quad);
  }
}

template <class Config, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads)
    simt_kernel(GlobalMatrix<float, kLhsTransposed> g_lhs, GlobalMatrix<float, kRhsTransposed> g_rhs, Epilogue epilogue,
                TileGrid grid, int64_t M, int64_t N, int64_t K) {
  auto& smem = shared_storage<typename Config::SharedStorage>();
  const TileCoord tile = grid.tile(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row = tile.row + warp * (Config::has(Defect::kRowsOverlap) ? kRows - 1 : kRows);
  if (Config::has(Defect::kEarlyReturn) && tile.col + lane >= N) return;

  float sums[kRows] = {};
  for (int64_t k_tile = 0; k_tile < K; k_tile += kTile) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int k = i * kWarps + (Config::has(Defect::kTwoWriters) ? warp / 2 * 2 : warp);
      const bool exists = k_tile + k < K && tile.col + lane < N;
      if (Config::has(Defect::kTailNotZeroed) && !exists) continue;
      smem.rhs[rhs_offset<Config>(k + (Config::has(Defect::kRowPastTile) ? 1 : 0), lane)] =
          exists ? *g_rhs.at(tile.batch, k_tile + k, tile.col + lane) : 0.0f;
    }
    if constexpr (!Config::has(Defect::kNoBarrierBeforeReads)) __syncthreads();  // rhs is complete
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool exists = row + r < M && (k_tile + lane < K || Config::has(Defect::kReadsPastRow));
      const float* element = g_lhs.at(tile.batch, row + r, k_tile + lane);
      smem.lhs[warp][r][lane] = exists ? *element : 0.0f;
      if (Config::has(Defect::kWritesOperand) && exists) *const_cast<float*>(element) = smem.lhs[warp][r][lane];
    }
    if constexpr (!Config::has(Defect::kNoWarpBarrier)) __syncwarp();  // the warp's rows of lhs are complete
    multiply<Config>(sums, smem.lhs[warp], smem.rhs, lane);
    if constexpr (!Config::has(Defect::kNoBarrierAfterReads)) __syncthreads();  // nobody reads any more
  }
  store<Config>(epilogue, sums, tile, row, lane, M, N);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  return launch_tiles<Config, float>(args, [&]<bool kLhsTransposed, bool kRhsTransposed>() {
    return &simt_kernel<Config, kLhsTransposed, kRhsTransposed>;
  });
}

template <Defect kDefect>
constexpr Kernel kKernel = {describe<Config<kDefect>>(), &launch<Config<kDefect>>, &no_workspace};

}  // namespace
}  // namespace jaxgemm
