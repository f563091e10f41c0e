// naive: one thread computes one element of out and reads its whole row of lhs and column of rhs from global memory.
//
// The first rung: correct, and bound by the load units, which fetch two floats for every multiply-add. Threads of a
// warp lie along a row of out, so that they read one element of lhs together and 32 neighbours of rhs (layout NN).
#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "tile/global_matrix.cuh"
#include "tile/launch_tiles.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

struct Config32x32 {
  static constexpr std::string_view kFamily = "naive";
  static constexpr DTypes kDTypes[] = {{DType::kF32, DType::kF32, DType::kF32}};
  static constexpr Tile kCtaTile = {32, 32, 1}, kWarpTile = {1, 32, 1};
  static constexpr int kStages = 1, kThreads = kCtaTile.m * kCtaTile.n;
  struct SharedStorage {};
};

template <class Config, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads)
    naive_kernel(GlobalMatrix<float, kLhsTransposed> g_lhs, GlobalMatrix<float, kRhsTransposed> g_rhs,
                 Epilogue epilogue, TileGrid grid, int64_t M, int64_t N, int64_t K) {
  const TileCoord tile = grid.tile(blockIdx.x);
  const int64_t m = tile.row + threadIdx.x / Config::kCtaTile.n;
  const int64_t n = tile.col + threadIdx.x % Config::kCtaTile.n;
  if (m >= M || n >= N) return;

  const float* lhs = g_lhs.at(tile.batch, m, 0);
  const float* rhs = g_rhs.at(tile.batch, 0, n);
  const int64_t lhs_step = kLhsTransposed ? g_lhs.ld : 1;
  const int64_t rhs_step = kRhsTransposed ? 1 : g_rhs.ld;
  float accumulator = 0.0f;
  for (int64_t k = 0; k < K; ++k) accumulator = fmaf(lhs[k * lhs_step], rhs[k * rhs_step], accumulator);
  epilogue.store(tile.batch, m, n, accumulator);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  return launch_tiles<Config, float>(args, [&]<bool kLhsTransposed, bool kRhsTransposed>() {
    return &naive_kernel<Config, kLhsTransposed, kRhsTransposed>;
  });
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &no_workspace};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(naive, &kKernel<Config32x32>)
