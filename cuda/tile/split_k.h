// Splitting K: several CTAs compute partial sums of one tile of out, each over its own share of the k-tiles, and a
// second kernel adds them up, always in the same order.
#pragma once

#include <cstdint>
#include <string>

#include "gemm.h"
#include "tile/divisor.cuh"

namespace jaxgemm {

// Partial tiles lie in the workspace one after the other, dense, tiles of out innermost: what CTA i = split * tiles +
// tile computes is partial tile i.
struct SplitK {
  int64_t splits = 1;
  int64_t depth = 0;  // elements of K of each split but the last
  int64_t tiles;      // of out, all batches together
  Divisor by_tiles;   // a CTA's number: split, tile

  // `tile`: what one CTA computes, or, where a cluster does so together, all of its CTAs, and what K is cut into.
  SplitK(const KernelInfo& info, const Problem& p, const Tile& tile);

  int64_t ctas() const { return splits * tiles; }
  int64_t workspace_bytes(const Tile& tile) const {
    return splits == 1 ? 0 : ctas() * tile.m * tile.n * static_cast<int64_t>(sizeof(float));
  }
};

// Enqueues out = epilogue(sums of the partial tiles). `recompute`: see MmaTf32x3. Returns "" or what went wrong.
std::string reduce_partial_tiles(const GemmArgs& args, const Tile& tile, const SplitK& split, const void* partials,
                                 bool recompute);

}  // namespace jaxgemm
