#include "epilogue/epilogue.cuh"
#include "epilogue/recompute.cuh"
#include "epilogue/staged.cuh"
#include "launch.cuh"
#include "ptx/shared_storage.cuh"
#include "scheduler.cuh"
#include "split_k.h"

namespace jaxgemm {
namespace {

constexpr int kReduceThreads = 256, kMaxGroups = 8;

// Four neighbouring columns of out are summed by one thread of each of `groups` groups, which share the splits: group g
// takes the splits g, g + groups, .... The sums of the groups are then added in their order.
template <class Accumulator, class Fix>
__global__ void __launch_bounds__(kReduceThreads)
    split_k_reduce_kernel(const Accumulator* partials, int64_t splits, int64_t split_stride, int groups,
                          int64_t first_tile, Epilogue epilogue, TileGrid grid, Fix fix, int64_t M, int64_t N) {
  using Quad = typename VectorsOf<Accumulator>::Quad;
  const int quads_per_row = grid.cta_n / 4, quads_per_tile = grid.cta_m * quads_per_row;
  const int quads_per_cta = static_cast<int>(blockDim.x) / groups, ctas_per_tile = quads_per_tile / quads_per_cta;
  const int thread = static_cast<int>(threadIdx.x), group = thread / quads_per_cta;
  const unsigned tile_index = blockIdx.x / static_cast<unsigned>(ctas_per_tile);
  const int quad =
      static_cast<int>(blockIdx.x % static_cast<unsigned>(ctas_per_tile)) * quads_per_cta + thread % quads_per_cta;

  const Accumulator* partial = partials + (static_cast<int64_t>(tile_index) * quads_per_tile + quad) * 4;
  Accumulator sum[4] = {};
  const auto add = [&](Quad values) {
    sum[0] += values.x;
    sum[1] += values.y;
    sum[2] += values.z;
    sum[3] += values.w;
  };
#pragma unroll 8
  for (int64_t split = group; split < splits; split += groups) {
    add(*reinterpret_cast<const Quad*>(partial + split * split_stride));
  }
  Quad* s_sums = shared_storage<Quad[kReduceThreads]>();
  if (group > 0) s_sums[thread] = {sum[0], sum[1], sum[2], sum[3]};
  __syncthreads();
  if (group > 0) return;
  for (int other = 1; other < groups; ++other) add(s_sums[other * quads_per_cta + thread]);

  const TileCoord tile = grid.tile(static_cast<unsigned>(first_tile) + tile_index);
  const int64_t row = tile.row + quad / quads_per_row, col = tile.col + quad % quads_per_row * 4;
  if (row >= M || col >= N) return;
  fix(sum, tile.batch, row, col, N);
  epilogue.store4(tile.batch, row, col, N, sum);
}

// So many that a thread takes about four splits.
int groups_for(int64_t splits) {
  int groups = 1;
  while (groups < kMaxGroups && splits > groups * 4) groups *= 2;
  return groups;
}

}  // namespace

SplitK::SplitK(const KSplit& wanted, const Problem& p, const Tile& tile)
    : tiles(TileGrid(tile, p.M, p.N).ctas(p.batch)), whole(wanted.whole), by_shared(tiles - whole) {
  const int64_t k_tiles = (p.K + tile.k - 1) / tile.k;
  const int64_t each = k_tiles == 0 ? 1 : (k_tiles + wanted.splits - 1) / wanted.splits;
  depth = each * tile.k;
  splits = k_tiles == 0 ? 1 : (k_tiles + each - 1) / each;  // none is empty
}

std::string reduce_partial_tiles(const GemmArgs& args, const Tile& tile, const SplitK& split, const void* partials,
                                 bool recompute) {
  const Problem& p = args.problem;
  const int64_t tile_elems = static_cast<int64_t>(tile.m) * tile.n;
  const int groups = groups_for(split.splits), quads = static_cast<int>(tile_elems / 4);
  const int threads = quads * groups < kReduceThreads ? quads * groups : kReduceThreads;  // of a small tile, all
  const int64_t ctas = split.shared() * quads * groups / threads;
  const auto launch = [&]<class Accumulator, class Fix>(const Accumulator* data, Fix fix) {
    return launch_kernel(split_k_reduce_kernel<Accumulator, Fix>, ctas, threads,
                         static_cast<int>(kReduceThreads * sizeof(typename VectorsOf<Accumulator>::Quad)), args.stream,
                         data, split.splits, split.shared() * tile_elems, groups, split.whole, Epilogue(args),
                         TileGrid(tile, p.M, p.N), fix, p.M, p.N);
  };
  if (p.out_dtype == DType::kS32) return launch(static_cast<const int32_t*>(partials), Keep(args));
  const float* sums = static_cast<const float*>(partials);
  return recompute ? launch(sums, Recompute(args)) : launch(sums, Keep(args));
}

}  // namespace jaxgemm
