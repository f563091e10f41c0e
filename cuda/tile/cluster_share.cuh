// How clusters of CTAs that stay share tiles of out. Each cluster has as many tiles as any other, or one more, and its
// CTAs have equal parts of the K of all of those, laid end to end: so a CTA computes a part of one tile, whole tiles
// and then a part of another one. With one CTA to a cluster all are whole.
//
// Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU",
// arXiv:2301.03598; here within clusters, whose CTAs can wait for each other.
#pragma once

#include <cstdint>

#include "tile/divisor.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {

struct ClusterShare {
  TileGrid grid;
  Divisor by_ctas;
  int ctas, k_tiles;  // of a cluster; of a tile
  unsigned tiles, clusters;
  unsigned rounds, rest;  // tiles of a cluster; how many clusters have one more
  int share[2];           // k-tiles of a CTA, by whether its cluster has one more

  // A row of tiles takes more of the L2 cache than a column, whose weights are codes: bands are narrow.
  static constexpr int kBandRows = 4;

  // `clusters` is 1 or more.
  ClusterShare(const Tile& tile, const Problem& p, int64_t clusters, int ctas)
      : grid(tile, p.M, p.N, kBandRows),
        by_ctas(ctas),
        ctas(ctas),
        k_tiles(static_cast<int>((p.K + tile.k - 1) / tile.k)),
        tiles(static_cast<unsigned>(grid.ctas(p.batch))),
        clusters(static_cast<unsigned>(clusters)),
        rounds(tiles / this->clusters),
        rest(tiles % this->clusters),
        share{share_of(rounds), share_of(rounds + 1)} {}

  // Of a tile whose K is laid out from `begin` on.
  struct Part {
    int begin;
    unsigned tile;      // of the grid
    int k_tile, count;  // the first, and how many; none where K is 0
    bool first, last;   // whether K begins or ends with it
  };

  // The executing CTA's.
  struct Place {
    int cluster, rank;
    int share, all;  // k-tiles of a CTA and of the cluster

    __device__ int begin_of(int rank) const { return share * rank; }
    __device__ int end_of(int rank) const { return share * (rank + 1) < all ? share * (rank + 1) : all; }
  };
  __device__ Place place() const {
    const auto [cluster, rank] = by_ctas.divide(blockIdx.x);
    const int more = cluster < rest ? 1 : 0, mine = static_cast<int>(rounds) + more;
    return {static_cast<int>(cluster), static_cast<int>(rank), share[more], mine * k_tiles};
  }

  // Calls f(part) for each part of a tile that the CTA computes.
  template <class F>
  __device__ void for_each(F&& f) const {
    const Place at = place();
    const int first = at.begin_of(at.rank), end = at.end_of(at.rank);
    int begin = 0;
#pragma unroll 1
    for (unsigned number = at.cluster; number < tiles; number += clusters, begin += k_tiles) {
      const int from = first > begin ? first - begin : 0, to = end - begin < k_tiles ? end - begin : k_tiles;
      if (ctas > 1 && from >= to) continue;
      f(Part{begin, number, from, to - from, from == 0, to == k_tiles});
    }
  }

 private:
  int share_of(unsigned tiles_of_cluster) const {
    return static_cast<int>((static_cast<int64_t>(tiles_of_cluster) * k_tiles + ctas - 1) / ctas);
  }
};

}  // namespace jaxgemm
