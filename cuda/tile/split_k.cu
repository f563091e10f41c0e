#include "epilogue/epilogue.cuh"
#include "epilogue/recompute.cuh"
#include "epilogue/staged.cuh"
#include "launch.cuh"
#include "scheduler.cuh"
#include "split_k.h"

namespace jaxgemm {
namespace {

constexpr int kReduceThreads = 128;

// One thread sums four neighbouring columns of out.
template <class Accumulator, class Fix>
__global__ void __launch_bounds__(kReduceThreads)
    split_k_reduce_kernel(const Accumulator* partials, int64_t splits, int64_t split_stride, Epilogue epilogue,
                          TileGrid grid, Fix fix, int64_t M, int64_t N) {
  using Quad = typename VectorsOf<Accumulator>::Quad;
  const int quads_per_row = grid.cta_n / 4, quads_per_tile = grid.cta_m * quads_per_row;
  const int ctas_per_tile = quads_per_tile / kReduceThreads;
  const unsigned tile_index = blockIdx.x / static_cast<unsigned>(ctas_per_tile);
  const int quad = static_cast<int>(blockIdx.x) % ctas_per_tile * kReduceThreads + static_cast<int>(threadIdx.x);
  const TileCoord tile = grid.tile(tile_index);
  const int64_t row = tile.row + quad / quads_per_row, col = tile.col + quad % quads_per_row * 4;
  if (row >= M || col >= N) return;

  const Accumulator* partial = partials + (static_cast<int64_t>(tile_index) * quads_per_tile + quad) * 4;
  Accumulator sum[4] = {};
#pragma unroll 8
  for (int64_t split = 0; split < splits; ++split) {
    const Quad values = *reinterpret_cast<const Quad*>(partial + split * split_stride);
    sum[0] += values.x;
    sum[1] += values.y;
    sum[2] += values.z;
    sum[3] += values.w;
  }
  fix(sum, tile.batch, row, col, N);
  epilogue.store4(tile.batch, row, col, N, sum);
}

}  // namespace

SplitK::SplitK(const KernelInfo& info, const Problem& p) : tiles(TileGrid(info.cta_tile, p.M, p.N).ctas(p.batch)) {
  const int64_t k_tiles = (p.K + info.cta_tile.k - 1) / info.cta_tile.k;
  const int64_t wanted = split_count(info, p);
  const int64_t each = k_tiles == 0 ? 1 : (k_tiles + wanted - 1) / wanted;
  depth = each * info.cta_tile.k;
  splits = k_tiles == 0 ? 1 : (k_tiles + each - 1) / each;  // none is empty
}

std::string reduce_partial_tiles(const GemmArgs& args, const Tile& tile, const SplitK& split, const void* partials,
                                 bool recompute_non_finite) {
  const Problem& p = args.problem;
  const int64_t tile_elems = static_cast<int64_t>(tile.m) * tile.n;
  const int64_t ctas = split.tiles * (tile_elems / 4 / kReduceThreads);
  const auto launch = [&]<class Accumulator, class Fix>(const Accumulator* data, Fix fix) {
    return launch_kernel(split_k_reduce_kernel<Accumulator, Fix>, ctas, kReduceThreads, 0, args.stream, data,
                         split.splits, split.tiles * tile_elems, Epilogue(args), TileGrid(tile, p.M, p.N), fix, p.M,
                         p.N);
  };
  if (p.out_dtype == DType::kS32) return launch(static_cast<const int32_t*>(partials), Keep(args));
  const float* sums = static_cast<const float*>(partials);
  return recompute_non_finite ? launch(sums, Recompute(args)) : launch(sums, Keep(args));
}

}  // namespace jaxgemm
