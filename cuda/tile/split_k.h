// Splitting K: several CTAs compute partial sums of one tile of out, each over its own share of the k-tiles, and a
// second kernel adds them up, always in the same order. Of all tiles; or of those only that are left over when every
// multiprocessor has had as many whole ones as the others.
#pragma once

#include <cstdint>
#include <string>

#include "gemm.h"
#include "tile/divisor.cuh"

namespace jaxgemm {

// Units of work are first the whole tiles, then, for each part of K, the tiles that are shared. Partial tiles lie in
// the workspace one after the other, dense: what unit `whole` + i computes is partial tile i.
struct SplitK {
  int64_t splits = 1;
  int64_t depth = 0;  // elements of K of each part but the last
  int64_t tiles;      // of out, all batches together
  int64_t whole;      // how many of them, the first, are not shared
  Divisor by_shared;  // the number of a unit after the whole tiles: part, shared tile

  // `tile`: what one CTA computes, or, where a cluster does so together, all of its CTAs, and what K is cut into.
  SplitK(const KernelInfo& info, const Problem& p, const Tile& tile) : SplitK(k_split(info, p), p, tile) {}

  __host__ __device__ int64_t shared() const { return tiles - whole; }
  int64_t units() const { return whole + splits * shared(); }
  int64_t workspace_bytes(const Tile& tile) const {
    return splits == 1 ? 0 : splits * shared() * tile.m * tile.n * static_cast<int64_t>(sizeof(float));
  }

  struct Unit {
    unsigned tile;
    int64_t k, depth;  // of K, which has K elements
    int64_t partial;   // the number of its partial tile; negative: the tile is whole
  };
  __device__ Unit unit(unsigned number, int64_t K) const {
    if (number < whole) return {number, 0, K, -1};
    const unsigned partial = number - static_cast<unsigned>(whole);
    const auto [part, tile] = by_shared.divide(partial);
    return {static_cast<unsigned>(whole) + tile, part * depth, depth_of(part, K), partial};
  }
  __device__ int64_t depth_of(unsigned part, int64_t K) const {
    const int64_t rest = K - part * depth;
    return rest < depth ? rest : depth;
  }

 private:
  SplitK(const KSplit& wanted, const Problem& p, const Tile& tile);
};

// Enqueues out = epilogue(sums of the partial tiles). `recompute`: see MmaTf32x3. Returns "" or what went wrong.
std::string reduce_partial_tiles(const GemmArgs& args, const Tile& tile, const SplitK& split, const void* partials,
                                 bool recompute);

}  // namespace jaxgemm
