// What the CTAs of a persistent wgmma kernel compute, and in what operands.
#pragma once

#include "gemm.h"
#include "launch.cuh"
#include "mainloop/sm90_tma_wgmma.cuh"
#include "scheduler.cuh"
#include "split_k.h"
#include "tma_operand.h"
#include "wgmma_op.cuh"

namespace jaxgemm::sm90 {

struct Shape {
  int64_t M, N, K;
  bool lhs_shared, rhs_shared;  // by all batches
  int lhs_rows;                 // of a copy
  int plane_k;                  // see Mainloop::Work
};

// Both operands as TMA reads them.
template <class Config>
struct Operands {
  TmaOperand lhs, rhs;

  explicit Operands(const Problem& p) : lhs(operand(p, true)), rhs(operand(p, false)) {}

  int64_t workspace_bytes() const { return lhs.workspace_bytes() + rhs.workspace_bytes(); }

 private:
  static TmaOperand operand(const Problem& p, bool lhs) {
    const bool any_major = size_bytes(p.lhs_dtype) == 2 || (!lhs && Config::kRhsInRegisters);
    return {p, lhs, any_major, planes(p), Config::kTileK};
  }
};

// Where sums go. What a kernel has to do for one way only, it should not have to step over on another: its code is not
// in the caches when it begins.
enum class Way {
  kPlain,    // of whole tiles: to out, rounded, by TMA
  kCluster,  // of parts of K: to the other CTAs of the cluster, which share it
  kAny,      // the rest: with alpha, bias or activation, where TMA cannot store, parts of K, sums to be fixed
};

// What the CTAs of a cluster compute together, one part of K of one tile of the grid after the other.
template <class Config>
struct Schedule {
  TileGrid grid;  // of clusters' tiles
  SplitK split;
  Divisor by_splits;
  bool in_cluster;  // the CTAs that share a tile's K are a cluster
  unsigned units;
  unsigned taken_from;  // tiles from this one on are taken (taken_tiles.cuh); what there is not, if none
  Shape shape;

  static constexpr Tile kTile = {Config::kClusterCtas * Config::kCtaTile.m, Config::kCtaTile.n,
                                 Config::kTilesOfStep * Config::kCtaTile.k};

  explicit Schedule(const Problem& p)
      : grid(kTile, p.M, p.N),
        split(describe<Config>(), p, kTile),
        by_splits(split.splits),
        in_cluster(reduces_in_cluster(describe<Config>(), {split.whole, split.splits})),
        units(static_cast<unsigned>(split.units())),
        taken_from(taken_from_of(k_split(describe<Config>(), p))),
        shape{p.M,
              p.N,
              p.K,
              p.lhs.batch_stride == 0,
              p.rhs.batch_stride == 0,
              copied_lhs_rows<Config>(p, Operands<Config>(p).lhs.view().transposed),
              static_cast<int>((p.K + Config::kTileK - 1) / Config::kTileK) * Config::kTileK} {}

  int cluster_ctas() const { return in_cluster ? static_cast<int>(split.splits) : Config::kClusterCtas; }
  int64_t partial_bytes() const { return in_cluster ? 0 : split.workspace_bytes(kTile); }
  __host__ __device__ bool takes() const { return taken_from != kNone; }
  int64_t counter_bytes() const { return takes() ? static_cast<int64_t>(sizeof(unsigned)) : 0; }

  // The first tile that is taken: those before are dealt to so many clusters.
  __device__ unsigned first_taken() const {
    const unsigned clusters = gridDim.x / Config::kClusterCtas;
    return taken_from < clusters ? clusters : taken_from;
  }

  // What this CTA's cluster shares, if there is such a tile: the last of this CTA's.
  __device__ bool shares() const { return in_cluster && blockIdx.x < units - static_cast<unsigned>(split.whole); }
  __device__ TileCoord shared_tile() const {
    return grid.tile(static_cast<unsigned>(split.whole) + by_splits.divide(blockIdx.x).quotient);
  }

  // Calls f(number of a partial tile, which is negative if the tile is whole, tile, first element of K, k-tiles);
  // take(n) is to say which tile is the n-th that is taken.
  template <Way kWay, class Take, class F>
  __device__ void for_each(Take&& take, F&& f) const {
    const unsigned step = gridDim.x / Config::kClusterCtas, first = blockIdx.x / Config::kClusterCtas;
    if constexpr (kWay == Way::kPlain) {
      auto after = [&, n = 0u](unsigned tile) mutable { return tile + step < taken_from ? tile + step : take(n++); };
      for (unsigned tile = first; tile < units; tile = after(tile)) f(-1, grid.tile(tile), 0, k_tiles(shape.K));
    } else if constexpr (!Config::kSplitK) {
      for (unsigned tile = first; tile < units; tile += step) f(-1, grid.tile(tile), 0, k_tiles(shape.K));
    } else if constexpr (kWay == Way::kCluster) {
      for (unsigned i = first; i < gridDim.x; i += step) {  // once, but what is no loop is compiled worse
        const unsigned part = by_splits.divide(i).rest;
        f(0, shared_tile(), static_cast<int>(part * split.depth), k_tiles(split.depth_of(part, shape.K)));
      }
    } else {
      const unsigned end = in_cluster ? static_cast<unsigned>(split.whole) : units;
      const auto or_shared = [&](unsigned unit) { return unit < end ? unit : shares() ? shared_unit() : units; };
      for (unsigned unit = or_shared(first); unit < units; unit = unit < end ? or_shared(unit + step) : units) {
        const auto [tile, k, depth, partial] = split.unit(unit, shape.K);
        f(partial, grid.tile(tile), static_cast<int>(k), k_tiles(depth));
      }
    }
  }

 private:
  static constexpr unsigned kNone = 0xffffffff;
  static unsigned taken_from_of(const KSplit& split) {
    return takes_tiles(split) ? static_cast<unsigned>(split.whole) : kNone;
  }
  __device__ static int k_tiles(int64_t depth) {
    return static_cast<int>((depth + Config::kCtaTile.k - 1) / Config::kCtaTile.k);
  }
  __device__ unsigned shared_unit() const {
    const auto [tile, part] = by_splits.divide(blockIdx.x);
    return static_cast<unsigned>(split.whole) + part * static_cast<unsigned>(split.shared()) + tile;
  }
};

}  // namespace jaxgemm::sm90
