// Which kernel to run for quantised weights, and over how many CTAs it splits K.
//
// A model like that of select.cc, of what takes time here. It adds up, in microseconds of an H200:
//   k-tiles of the multiprocessor with the most CTAs, each at least its latency: making numbers of codes takes the same
//     for any number of tokens, multiplying them takes more for more;
//   or reading the weights from DRAM, and tokens from L2 for each column of tiles, if that takes longer;
//   CTAs, of those that one multiprocessor has after another, or for CTAs that stay tiles: filling the pipeline and
//     writing the sums;
//   where K is split, adding up: within a cluster, or with a second kernel and the traffic of partial sums; or in a
//     stream of all CTAs, each after the one before.
// The constants were fitted to measurements of all families on an H200 in bfloat16 (tests/chooser_times_mixed*.json),
// so that the choices are good, for few tokens above all. With groups of 128, of the benchmarks' seven matrices with 1
// to 4096 tokens, they take 0.9 % longer than the best on average, 0.6 % with up to 16 tokens, and at most 15 % (384
// tokens, 6144 x 4096), of the products of layers that two GPUs share 0.5 % and at most 4 %; with other groups and zero
// points, of four of the matrices, 0.2 % and at most 6 %; those of int4_mma alone 1.6 %. Of 512 to 2048 columns, which
// it was not fitted to, with 1 to 64 tokens 2.6 % and at most 17 % (8 tokens, 1024 x 14336).
// Times up to twice the best (int4_mma: 1.6 times) are met within 8.4 % (7.4 %; int4_tma 4.2 %), root mean square.
#include "select_mixed.h"

#include <algorithm>
#include <cmath>

namespace jaxgemm {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What cudaOccupancyMaxActiveClusters says of an H200, by CTAs to a multiprocessor, and CTAs of a cluster, which has to
// fit a GPC.
int64_t clusters_of(int ctas, int64_t splits, int64_t sms) {
  constexpr int kMostCtas = 4, kOf = 132;
  constexpr int64_t kClusters[kMostCtas][kMostMixedClusterSplits] = {{132, 66, 39, 30, 22, 17, 15, 15},
                                                                     {264, 132, 79, 62, 47, 39, 32, 30},
                                                                     {396, 198, 124, 92, 69, 62, 47, 45},
                                                                     {528, 264, 163, 124, 94, 79, 69, 62}};
  return std::max<int64_t>(
      1, kClusters[std::min(ctas, kMostCtas) - 1][std::min<int64_t>(splits, kMostMixedClusterSplits) - 1] * sms / kOf);
}

// What has a value here is not of both families.
struct Rates {
  double weight_us, token_us;          // of a multiprocessor: of a weight, and of its product with a token
  double outside_us = 0.0;             // of one of K of a token that a tile has room for and M does not have
  double latency_us, latency_of_work;  // of a k-tile: a constant, and how much of its work
  double ring_us = 0.0;                // of a k-tile, from when it is asked for until its stage is free again, at least
  double dram_bytes_per_us, l2_bytes_per_us;
  double l2_power = 0.0;  // the latter is for tiles of 64 tokens, more for higher ones
  double launch_us, cta_us;
  double tile_element_us = 0.0;    // of sums written before the next tile begins
  double stored_element_us = 0.0;  // the same where TMA stores them
  // Where K is split: of each CTA that shares it, and of an element of partial sums; and of one that waits in memory.
  double split_us, split_cta_us = 0.0, partial_element_us, parked_element_us = 0.0;
  double halves_us = 0.0;  // all of that where two CTAs swap halves of one tile
  // Where warpgroups share k-tiles: of an element of each sharer's sums; how much longer a k-tile takes with each
  // sharer more; and how much more work it is.
  double gathered_element_us = 0.0, shared_latency = 0.0, shared_work = 1.0;
  // Of a stream, and of an element that a CTA leaves, or adds to its own.
  double stream_us = 0.0, streamed_element_us = 0.0;
  double turns_l2 = 1.0;  // how much of the time of reading from L2 it is where warpgroups have a tile each
  // How much more work it is to scale all weights where else the sums are scaled; for each group more than one that 128
  // rows have; and with zero points that are not all in the middle. All that is hidden where warpgroups share k-tiles.
  double of_unscaled = 0.0, of_part, of_zeros;
};
constexpr Rates kMma = {.weight_us = 6.03572e-6,
                        .token_us = 2.57017e-7,
                        .latency_us = 0.0646135,
                        .latency_of_work = 1.61222,
                        .dram_bytes_per_us = 6.00659e6,
                        .l2_bytes_per_us = 5.16747e6,
                        .launch_us = 2.22825,
                        .cta_us = 0.98492,
                        .split_us = 2.42055,
                        .partial_element_us = 1.09789e-6,
                        .of_part = 0.187059,
                        .of_zeros = 0.3136};
constexpr Rates kTma = {.weight_us = 2.43344e-6,
                        .token_us = 1.33961e-7,
                        .latency_us = 0.0449684,
                        .latency_of_work = 3.25056,
                        .ring_us = 0.0496787,
                        .dram_bytes_per_us = 5.31e6,
                        .l2_bytes_per_us = 1.90351e7,
                        .launch_us = 2.76227,
                        .cta_us = 0.246671,
                        .tile_element_us = 0.000767194,
                        .split_us = 0.0,
                        .partial_element_us = 0.0,
                        .shared_latency = 0.835739,
                        .shared_work = 1.13458,
                        .of_part = 0.0,
                        .of_zeros = 0.0};
constexpr Rates kWgmma = {.weight_us = 1.06691e-5,
                          .token_us = 2.49822e-7,
                          .outside_us = 1.586e-5,
                          .latency_us = 0.122762,
                          .latency_of_work = 0.826377,
                          .ring_us = 0.044598,
                          .dram_bytes_per_us = 5.21952e6,
                          .l2_bytes_per_us = 8.90779e6,
                          .l2_power = 0.0105055,
                          .launch_us = 2.63828,
                          .cta_us = 1.20749e-5,
                          .tile_element_us = 0.000137231,
                          .stored_element_us = 0.000185017,
                          .split_us = 1.62403,
                          .split_cta_us = 0.182352,
                          .partial_element_us = 3.22364e-5,
                          .parked_element_us = 0.00020242,
                          .halves_us = 1.25733,
                          .gathered_element_us = 9.81316e-8,
                          .shared_latency = 0.53991,
                          .shared_work = 1.07783,
                          .stream_us = 6.16912,
                          .streamed_element_us = 2.79432e-6,
                          .turns_l2 = 0.688385,
                          .of_unscaled = 0.0409877,
                          .of_part = 0.00567989,
                          .of_zeros = 0.0215952};

const Rates& rates_of(const KernelInfo& info) {
  if (!info.tma) return kMma;
  return info.family == "int4_tma" ? kTma : kWgmma;
}

// What is the same for all families.
struct Costs {
  const Rates& rates;
  const KernelInfo& info;
  const Problem& p;
  int64_t rows = ceil_div(p.M, info.cta_tile.m), columns = ceil_div(p.N, info.cta_tile.n),
          tiles = rows * columns * p.batch, k_tiles = ceil_div(p.K, info.cta_tile.k),
          elements = info.cta_tile.m * info.cta_tile.n;

  // Of a k-tile of each of so many CTAs of a multiprocessor; latency is that of eight warps to a CTA of int4_mma, which
  // share the work.
  double k_tile_us(int64_t side_by_side) const {
    if (side_by_side == 0) return 0.0;
    constexpr int kRows = 128, kSmallest = 32, kWarps = 8;
    const int parts = scaled_parts(p.codes.group_size, p.K, kRows, kSmallest);
    double more = 0.0;
    if (info.k_sharers == 1) {
      more = rates.of_part * (parts - 1) + (p.codes.zeros == Zeros::kMiddle ? 0.0 : rates.of_zeros) +
             (scales_sums(info.warp_tile, 1) && !scales_sums(info.warp_tile, parts) ? rates.of_unscaled : 0.0);
    }
    const double outside = static_cast<double>(rows * info.cta_tile.m - p.M) / static_cast<double>(rows);
    // The copies of these are hidden where warpgroups share k-tiles.
    const double work = (1.0 + more) * static_cast<double>(info.cta_tile.n) * info.cta_tile.k *
                            (rates.weight_us + rates.token_us * info.cta_tile.m) +
                        (info.k_sharers > 1 ? 0.0 : rates.outside_us * outside * info.cta_tile.k);
    const double of_warp = info.tma ? work : work * kWarps * kWarpSize / info.threads;
    const double latency = rates.latency_us + rates.latency_of_work * of_warp;
    const double sharers = info.k_sharers;  // of which each is in the others' way
    return std::max({static_cast<double>(side_by_side) * work * (info.k_sharers > 1 ? rates.shared_work : 1.0),
                     latency * (1.0 + rates.shared_latency * (sharers - 1.0)) / sharers, rates.ring_us / info.stages});
  }

  // Of computing, which takes so long without it, and memory, the longer one, more or less.
  double with_memory(double compute_us) const {
    const double batch = static_cast<double>(p.batch), M = static_cast<double>(p.M), N = static_cast<double>(p.N),
                 K = static_cast<double>(p.K);
    const double weights = batch * N * K * info.bits / 8, tokens = 2.0 * batch * M * K;
    const double parameters = batch * N * static_cast<double>(p.codes.groups(p.K)) *
                              (size_bytes(p.codes.scale_dtype) + (p.codes.zeros == Zeros::kMiddle ? 0 : 1));
    const double dram = (weights + parameters + tokens + 2.0 * batch * M * N) / rates.dram_bytes_per_us;
    const double l2 = (static_cast<double>(columns) * tokens + static_cast<double>(rows) * weights) /
                      rates.l2_bytes_per_us * std::pow(64.0 / info.cta_tile.m, rates.l2_power) *
                      (info.tma && !info.split_k ? rates.turns_l2 : 1.0);
    const auto fourth = [](double x) { return x * x * x * x; };
    return std::sqrt(std::sqrt(fourth(compute_us) + fourth(dram) + fourth(l2)));
  }
};

// Of CTAs that share K without being a cluster.
double mma_cost_us(const Costs& costs, int64_t splits) {
  const Rates& rates = costs.rates;
  const KernelInfo& info = costs.info;
  const int64_t resident = info.resident_ctas, ctas = costs.tiles * splits,
                share = ceil_div(ctas, planned_multiprocessors(costs.p.sm));
  const double compute =
      static_cast<double>(ceil_div(costs.k_tiles, splits)) *
      (static_cast<double>(share / resident) * costs.k_tile_us(resident) + costs.k_tile_us(share % resident));
  const double elements = static_cast<double>(costs.elements);
  double cost =
      rates.launch_us + costs.with_memory(compute) + static_cast<double>(ceil_div(share, resident)) * rates.cta_us;
  if (splits > 1) cost += rates.split_us + rates.partial_element_us * elements * static_cast<double>(ctas);
  return cost;
}

// Of clusters that stay (tile/cluster_share.cuh).
double wgmma_cost_us(const Costs& costs, int64_t splits) {
  const Rates& rates = costs.rates;
  const int64_t sms = planned_multiprocessors(costs.p.sm),
                clusters = std::min(costs.tiles, mixed_clusters(costs.info, splits, sms)),
                rounds = costs.tiles / clusters, rest = costs.tiles % clusters;
  // Clusters spread over the multiprocessors, as far as they fit.
  const auto side_by_side = [&](int64_t some) {
    if (some == 0) return 0;
    int ctas = 1;
    while (ctas < costs.info.resident_ctas && some > clusters_of(ctas, splits, sms)) ++ctas;
    return ctas;
  };
  const int64_t whole = ceil_div(rounds * costs.k_tiles, splits),
                more = rest == 0 ? 0 : ceil_div((rounds + 1) * costs.k_tiles, splits) - whole;
  const double compute = static_cast<double>(whole) * costs.k_tile_us(side_by_side(clusters)) +
                         static_cast<double>(more) * costs.k_tile_us(side_by_side(rest));
  double cost = rates.launch_us + costs.with_memory(compute) + rates.cta_us;
  const double partial = static_cast<double>(costs.elements) * side_by_side(clusters);
  if (costs.info.k_sharers > 1) {
    cost += rates.gathered_element_us * partial * (costs.info.k_sharers - 1) *
            static_cast<double>(ceil_div(ceil_div(costs.tiles, clusters), splits));
  }
  // Tiles that a CTA writes before others of its own. Where warpgroups take turns they do so meanwhile.
  if (costs.info.split_k || costs.info.k_sharers > 1) {
    const bool stored = costs.info.stream_k && splits == 1;
    cost += (stored ? rates.stored_element_us : rates.tile_element_us) * partial *
            static_cast<double>(ceil_div(ceil_div(costs.tiles, clusters), splits) - 1);
  }
  if (splits == 2 && costs.tiles <= clusters && costs.info.cta_tile.m >= kFewestTokensOfHalves) {
    cost += rates.halves_us;
  } else if (splits > 1) {
    cost += rates.split_us + rates.split_cta_us * static_cast<double>(splits) + rates.partial_element_us * partial;
    if (costs.tiles > clusters) cost += rates.parked_element_us * static_cast<double>(costs.elements);
  }
  return cost;
}

// Of CTAs that have whole tiles, all as many, and then their part of a stream.
double stream_cost_us(const Costs& costs, const KSplit& split) {
  constexpr double kCacheBytes = 24e6;  // of operands that stay in the L2 cache till the last CTA has read them
  const Rates& rates = costs.rates;
  const Tile& tile = costs.info.cta_tile;
  const int64_t rest = costs.tiles - split.whole, share = ceil_div(rest * costs.k_tiles, split.splits),
                others = ceil_div(costs.k_tiles, share);
  // CTAs of a stream are not at the same k-tile: what does not stay in the cache each of them reads from DRAM.
  const int64_t rows = std::min(costs.rows, kMixedBandRows * ceil_div(rest, kMixedBandRows * costs.columns));
  const double region = 2.0 * static_cast<double>(rows * tile.m) * static_cast<double>(costs.p.K);
  const double read =
      static_cast<double>(share * split.splits * tile.k) * (2.0 * tile.m + tile.n * costs.info.bits / 8);
  const double k_tile_us = costs.k_tile_us(1), stream_us = static_cast<double>(share) * k_tile_us;
  const double compute = static_cast<double>(split.whole / split.splits * costs.k_tiles) * k_tile_us +
                         (region > kCacheBytes ? std::max(stream_us, read / rates.dram_bytes_per_us) : stream_us);
  const double elements = static_cast<double>(costs.elements);
  return rates.launch_us + costs.with_memory(compute) + rates.cta_us + rates.stream_us +
         rates.stored_element_us * elements * static_cast<double>(ceil_div(costs.tiles, split.splits) - 1) +
         rates.streamed_element_us * elements * static_cast<double>(1 + others);
}

double cost_us(const Costs& costs, const KSplit& split) {
  if (costs.tiles == 0) return 0.0;
  if (!costs.info.tma) return mma_cost_us(costs, split.splits);
  return streams_k(split) ? stream_cost_us(costs, split) : wgmma_cost_us(costs, split.splits);
}

struct Plan {
  KSplit split;
  double cost_us;
};

Plan plan(const KernelInfo& info, const Problem& p) {
  const Costs costs = {rates_of(info), info, p};
  if (p.split.splits > 0) return {p.split, cost_us(costs, p.split)};
  Plan best = {{0, 1}, cost_us(costs, {0, 1})};
  const int64_t tiles = costs.tiles;
  if (tiles == 0 || !info.split_k) return best;
  const auto consider = [&](const KSplit& split) {
    const double cost = cost_us(costs, split);
    if (cost < best.cost_us) best = {split, cost};
  };
  // More CTAs than fit the GPU twice would only make more sums; and where CTAs that stay have four tiles each, it
  // matters little that some have one more.
  const int64_t sms = planned_multiprocessors(p.sm), at_once = sms * info.resident_ctas,
                useful = !info.tma             ? 2 * at_once / tiles
                         : tiles < 4 * at_once ? kMostMixedClusterSplits
                                               : 1;
  for (int64_t splits = 2; splits <= std::min(costs.k_tiles, useful); ++splits) consider({0, splits});
  if (info.stream_k) {
    const KSplit stream = {tiles / sms * sms, sms};
    if (streamed_k_tiles(tiles, stream.whole, costs.k_tiles) >= sms) consider(stream);
  }
  return best;
}

}  // namespace

int64_t mixed_clusters(const KernelInfo& info, int64_t splits, int64_t sms) {
  return clusters_of(info.resident_ctas, splits, sms);
}

KSplit mixed_k_split(const KernelInfo& info, const Problem& p) { return plan(info, p).split; }

double estimated_mixed_cost(const Kernel& kernel, const Problem& p) {
  constexpr double kCopyUs = 2.5;  // of tokens whose rows have to be padded
  const double cost = plan(kernel.info, p).cost_us;
  return p.empty() || kernel.copies(p).bytes == 0 ? cost : cost + kCopyUs;
}

const Kernel* select_mixed(const Problem& p, std::string_view family) {
  const Kernel* best = nullptr;
  for (const Kernel* kernel : mixed_kernels()) {
    if (!family.empty() && kernel->info.family != family) continue;
    if (!why_not(*kernel, p).empty()) continue;
    if (best == nullptr || estimated_mixed_cost(*kernel, p) < estimated_mixed_cost(*best, p)) best = kernel;
  }
  return best;
}

}  // namespace jaxgemm
