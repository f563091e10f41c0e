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

// What the CTAs of a cluster compute together, one part of K of one tile of the grid after the other.
template <class Config>
struct Schedule {
  TileGrid grid;  // of clusters' tiles
  SplitK split;
  Divisor by_splits;
  bool in_cluster;  // the CTAs that share a tile's K are a cluster
  unsigned units;   // tiles times splits
  Shape shape;

  static constexpr Tile kTile = {Config::kClusterCtas * Config::kCtaTile.m, Config::kCtaTile.n,
                                 Config::kTilesOfStep * Config::kCtaTile.k};

  explicit Schedule(const Problem& p)
      : grid(kTile, p.M, p.N),
        split(describe<Config>(), p, kTile),
        by_splits(split.splits),
        in_cluster(reduces_in_cluster(describe<Config>(), split.splits)),
        units(static_cast<unsigned>(split.ctas())),
        shape{p.M,
              p.N,
              p.K,
              p.lhs.batch_stride == 0,
              p.rhs.batch_stride == 0,
              copied_lhs_rows<Config>(p, Operands<Config>(p).lhs.view().transposed),
              static_cast<int>((p.K + Config::kTileK - 1) / Config::kTileK) * Config::kTileK} {}

  int cluster_ctas() const { return in_cluster ? static_cast<int>(split.splits) : Config::kClusterCtas; }
  int64_t partial_bytes() const { return in_cluster ? 0 : split.workspace_bytes(kTile); }

  // The part of K and the tile of a cluster that shares it.
  __device__ unsigned shared_unit() const {
    const auto [tile, part] = by_splits.divide(blockIdx.x);
    return part * static_cast<unsigned>(split.tiles) + tile;
  }

  template <class F>
  __device__ void for_each(F&& f) const {
    const unsigned first = in_cluster ? shared_unit() : blockIdx.x / Config::kClusterCtas;
    const unsigned step = in_cluster ? units : gridDim.x / Config::kClusterCtas;
    for (unsigned unit = first; unit < units; unit += step) {
      const auto [part, tile] = split.by_tiles.divide(unit);
      const int64_t k = part * split.depth;
      const int64_t depth = shape.K - k < split.depth ? shape.K - k : split.depth;
      f(unit, grid.tile(tile), static_cast<int>(k),
        static_cast<int>((depth + Config::kCtaTile.k - 1) / Config::kCtaTile.k));
    }
  }
};

}  // namespace jaxgemm::sm90
