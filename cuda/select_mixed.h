// What select.cc asks about kernels of quantised rhs.
#pragma once

#include <string_view>

#include "gemm.h"

namespace jaxgemm {

// In how many parts the products of `rows` rows are scaled, each with the scales of one group: as few of 1, 2, 4, ...,
// rows / smallest as the size of groups allows, which is a multiple of `smallest` or no smaller than K.
constexpr int scaled_parts(int64_t group, int64_t K, int rows, int smallest) {
  int parts = 1;
  while (group < K && parts < rows / smallest && group % (rows / parts) != 0) parts *= 2;
  return parts;
}

// Whether int4_wgmma scales sums, not weights, where a k-tile has so many groups: for few tokens that is less work. A
// k-tile is multiplied in a part for each eight columns of a warp, and no part has several groups then.
constexpr bool scales_sums(const Tile& warp_tile, int groups) {
  constexpr int kMostTokens = 32, kMostTokensOfSeveral = 16;
  if (groups == 1) return warp_tile.m <= kMostTokens;
  return warp_tile.m <= kMostTokensOfSeveral && groups <= warp_tile.n / 8;
}

// Where two CTAs share one tile of at least so many tokens, each adds up the sums of half of them
// (epilogue/swapped_halves.cuh).
inline constexpr int kFewestTokensOfHalves = 16;

// Tiles of quantised rhs lie in bands of so many rows (tile/cluster_share.cuh): a row takes more of the L2 cache than a
// column, whose weights are codes.
inline constexpr int kMixedBandRows = 4;

// The k-tiles that a stream shares, of tiles of so many each; none if they are too many to count in 32 bits.
constexpr int64_t streamed_k_tiles(int64_t tiles, int64_t whole, int64_t k_tiles) {
  const int64_t rest = tiles - whole;
  return rest > 0 && k_tiles <= kMaxCtas / 2 / rest ? rest * k_tiles : 0;
}

KSplit mixed_k_split(const KernelInfo& info, const Problem& p);
double estimated_mixed_cost(const Kernel& kernel, const Problem& p);
// How many clusters of `splits` CTAs that share K run at the same time on so many multiprocessors; 1 at least.
int64_t mixed_clusters(const KernelInfo& info, int64_t splits, int64_t sms);
const Kernel* select_mixed(const Problem& p, std::string_view family);

}  // namespace jaxgemm
