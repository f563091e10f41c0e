// How CTAs that stay share tiles of out.
//
// In clusters: each cluster has as many tiles as any other, or one more, and its CTAs have equal parts of the K of all
// of those, laid end to end: so a CTA computes a part of one tile, whole tiles and then a part of another one. With one
// CTA to a cluster all are whole.
//
// Or in a stream: the first `whole` tiles are one CTA's each, in turns; all CTAs together have the others, if there are
// any, as if they were one cluster. They are none, so that it depends on when a CTA began which part it has (see
// rank_in_stream()).
//
// Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU",
// arXiv:2301.03598; clusters are those whose CTAs can wait for each other.
#pragma once

#include <cstdint>

#include "gemm.h"
#include "select_mixed.h"
#include "tile/divisor.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {

struct ClusterShare {
  TileGrid grid;
  Divisor by_ctas;
  int ctas, k_tiles;  // of a cluster, or of the stream; of a tile
  unsigned tiles, whole, clusters;
  unsigned rounds, rest;  // tiles of a cluster; how many clusters have one more
  int share[2];           // k-tiles of a CTA, by whether its cluster has one more

  // `clusters` is 1 or more; 1 if split.splits CTAs are a stream.
  ClusterShare(const Tile& tile, const Problem& p, int64_t clusters, const KSplit& split)
      : grid(tile, p.M, p.N, kMixedBandRows),
        by_ctas(split.splits),
        ctas(static_cast<int>(split.splits)),
        k_tiles(static_cast<int>((p.K + tile.k - 1) / tile.k)),
        tiles(static_cast<unsigned>(grid.ctas(p.batch))),
        whole(static_cast<unsigned>(split.whole)),
        clusters(static_cast<unsigned>(clusters)),
        rounds((tiles - whole) / this->clusters),
        rest((tiles - whole) % this->clusters),
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

  // The beginning of a tile's K waits for the sums of its end, which then has to be of a CTA that began earlier.
  __device__ int rank_in_stream(unsigned ticket) const { return ctas - 1 - static_cast<int>(ticket); }
  __device__ Place place_in_stream(int rank) const { return {0, rank, share[0], static_cast<int>(rounds) * k_tiles}; }

  // Whether each cluster is two CTAs that share one tile.
  __device__ bool in_halves() const { return ctas == 2 && tiles <= clusters; }

  // Who has the end of the tile's K.
  __device__ int last_of(const Part& part) const { return (part.begin + k_tiles - 1) / share[0]; }

  // Calls f(part) for each part of a tile that the CTA computes. kStream: whether CTAs are a stream; rank() is then
  // asked for once, after the whole tiles, if others follow.
  template <bool kStream, class F, class Rank>
  __device__ void for_each(F&& f, Rank&& rank) const {
    bool shared = false;
    unsigned number = blockIdx.x, step = static_cast<unsigned>(ctas);
    int first = 0, end = k_tiles, begin = 0;  // of the CTA; of the tile's K, laid out
    const auto enter_shared = [&] {
      const Place at = kStream ? place_in_stream(rank()) : place();
      shared = true;
      first = at.begin_of(at.rank), end = at.end_of(at.rank);
      number = whole + static_cast<unsigned>(at.cluster), step = clusters;
      if (kStream && first < end) {
        const int skipped = first / k_tiles;
        number += static_cast<unsigned>(skipped);
        begin = skipped * k_tiles;
      }
    };
    if constexpr (!kStream) enter_shared();
#pragma unroll 1
    while (true) {
      if (kStream && !shared && number >= whole && whole < tiles) enter_shared();
      if (number >= tiles || (ctas > 1 && begin >= end)) return;
      const int from = first > begin ? first - begin : 0, to = end - begin < k_tiles ? end - begin : k_tiles;
      if (ctas == 1 || from < to) f(Part{begin, number, from, to - from, from == 0, to == k_tiles});
      number += step;
      if (shared) begin += k_tiles;
    }
  }

 private:
  int share_of(unsigned tiles_of_cluster) const {
    return static_cast<int>((static_cast<int64_t>(tiles_of_cluster) * k_tiles + ctas - 1) / ctas);
  }
};

}  // namespace jaxgemm
