// smem_tiled: a CTA stages a tile of lhs and a tile of rhs in shared memory; each thread computes one element of out.
//
// What it adds to naive: every element that is read from global memory is used by the 32 threads that need it, so the
// traffic to the caches falls by the width of the tile. All four layouts now read global memory in whole 128-byte rows:
// the transposing happens on the way into shared memory. What bounds it next: two loads from shared memory for every
// multiply-add.
// Source: CUDA C++ programming guide, "Shared memory", example of a tiled matrix product.
#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "ptx/shared_storage.cuh"
#include "tile/global_matrix.cuh"
#include "tile/launch_tiles.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

struct Config32x32x32 {
  static constexpr std::string_view kFamily = "smem_tiled";
  static constexpr DTypes kDTypes[] = {{DType::kF32, DType::kF32, DType::kF32}};
  static constexpr Tile kCtaTile = {32, 32, 32}, kWarpTile = {1, 32, 32};
  static constexpr int kStages = 1, kThreads = kCtaTile.m * kCtaTile.n;
  // One column more than the tile: a warp that writes a column (a transposed operand) then meets 32 different banks.
  static constexpr int kPad = 1;
  struct SharedStorage {
    float lhs[kCtaTile.m][kCtaTile.k + kPad];
    float rhs[kCtaTile.k][kCtaTile.n + kPad];
  };
  static_assert(kCtaTile.m == kCtaTile.k && kCtaTile.n == kCtaTile.k, "every thread stages one element per operand");
};

template <class Config, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads)
    smem_tiled_kernel(GlobalMatrix<float, kLhsTransposed> g_lhs, GlobalMatrix<float, kRhsTransposed> g_rhs,
                      Epilogue epilogue, TileGrid grid, int64_t M, int64_t N, int64_t K) {
  auto& smem = shared_storage<typename Config::SharedStorage>();
  constexpr int kCtaK = Config::kCtaTile.k;

  const TileCoord tile = grid.tile(blockIdx.x);
  const int slow = threadIdx.x / Config::kCtaTile.n;  // the same in all threads of a warp
  const int fast = threadIdx.x % Config::kCtaTile.n;  // neighbours within a warp: along contiguous global memory

  // The element of each k-tile that this thread stages, as a row and a column of the k-tile.
  const int lhs_m = kLhsTransposed ? fast : slow, lhs_k = kLhsTransposed ? slow : fast;
  const int rhs_k = kRhsTransposed ? fast : slow, rhs_n = kRhsTransposed ? slow : fast;
  const bool lhs_inside = tile.row + lhs_m < M, rhs_inside = tile.col + rhs_n < N;
  const float* lhs = g_lhs.at(tile.batch, tile.row + lhs_m, lhs_k);
  const float* rhs = g_rhs.at(tile.batch, rhs_k, tile.col + rhs_n);
  const int64_t lhs_step = kLhsTransposed ? kCtaK * g_lhs.ld : kCtaK;
  const int64_t rhs_step = kRhsTransposed ? kCtaK : kCtaK * g_rhs.ld;

  float accumulator = 0.0f;
  for (int64_t k_tile = 0; k_tile < K; k_tile += kCtaK) {
    // Beyond an edge both operands are zero, so that the inner loop needs no bounds.
    smem.lhs[lhs_m][lhs_k] = lhs_inside && k_tile + lhs_k < K ? *lhs : 0.0f;
    smem.rhs[rhs_k][rhs_n] = rhs_inside && k_tile + rhs_k < K ? *rhs : 0.0f;
    lhs += lhs_step;
    rhs += rhs_step;
    __syncthreads();  // both k-tiles are complete
#pragma unroll
    for (int k = 0; k < kCtaK; ++k) accumulator = fmaf(smem.lhs[slow][k], smem.rhs[k][fast], accumulator);
    __syncthreads();  // nobody reads them any more
  }

  const int64_t row = tile.row + slow, col = tile.col + fast;
  if (row < M && col < N) epilogue.store(tile.batch, row, col, accumulator);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  return launch_tiles<Config, float>(args, [&]<bool kLhsTransposed, bool kRhsTransposed>() {
    return &smem_tiled_kernel<Config, kLhsTransposed, kRhsTransposed>;
  });
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &no_workspace};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(smem_tiled, &kKernel<Config32x32x32>)
