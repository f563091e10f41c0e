// Which kernel to run for quantised weights, and over how many CTAs it splits K.
//
// A model like that of select.cc, of what takes time here. It adds up, in microseconds of an H200:
//   k-tiles of the multiprocessor with the most CTAs, each at least its latency: making numbers of codes takes the same
//     for any number of tokens, multiplying them takes more for more;
//   or reading the weights from DRAM, and tokens from L2 for each column of tiles, if that takes longer;
//   CTAs, of those that one multiprocessor has after another, or for CTAs that stay tiles: filling the pipeline and
//     writing the sums;
//   where K is split, adding up: within a cluster, or with a second kernel and the traffic of partial sums.
// The constants were fitted to measurements of both families on an H200, group 128 and bfloat16, of the benchmarks'
// seven matrices with 1 to 4096 tokens (tests/chooser_times_mixed.json), so that the choices are good: they take 1.0 %
// longer than the best on average, and at most 17 % (48 tokens, 10240 x 8192). Times up to twice the best
// (int4_mma: 1.6 times) are met within 8.5 %, root mean square.
#include "select_mixed.h"

#include <algorithm>
#include <cmath>

namespace jaxgemm {
namespace {

constexpr int kWarpThreads = 32;

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

struct Rates {
  double weight_us, token_us;          // of a multiprocessor: of a weight, and of its product with a token
  double latency_us, latency_of_work;  // of a k-tile: a constant, and how much of its work
  double dram_bytes_per_us, l2_bytes_per_us, l2_power;  // the latter for tiles of 64 tokens, more for higher ones
  double launch_us, cta_us, tile_element_us;            // the last: of sums written before the next tile begins
  // Where K is split: of each CTA that shares it, and of an element of partial sums; and of one that waits in memory.
  double split_us, split_cta_us, partial_element_us, parked_element_us;
};
constexpr Rates kMma = {0.0,  1.195e-6, 0.6535, 0.9485, 5.54e6, 5.401e6, 0.0,
                        3.11, 1.044,    0.0,    1.548,  0.0,    8.77e-7, 0.0},
                kWgmma = {1.038e-5, 2.786e-7, 0.1053,   0.8146, 4.757e6, 1.085e7,  0.2332,
                          2.062,    1.24,     5.671e-5, 1.577,  0.1168,  4.868e-5, 2.467e-4};

// What is the same for both families.
struct Costs {
  const Rates& rates;
  const KernelInfo& info;
  const Problem& p;
  int64_t rows = ceil_div(p.M, info.cta_tile.m), columns = ceil_div(p.N, info.cta_tile.n),
          tiles = rows * columns * p.batch, k_tiles = ceil_div(p.K, info.cta_tile.k),
          elements = info.cta_tile.m * info.cta_tile.n;

  // Of a k-tile of each of so many CTAs of a multiprocessor. The constants are for groups of whole k-tiles, all in the
  // middle; latency is that of eight warps to a CTA of int4_mma, which share the work.
  double k_tile_us(int64_t side_by_side) const {
    if (side_by_side == 0) return 0.0;
    constexpr double kOfPart = 0.07, kOfZeros = 0.04;
    constexpr int kRows = 128, kSmallest = 32, kWarps = 8;
    const int parts = scaled_parts(p.codes.group_size, p.K, kRows, kSmallest);
    const double more = 1.0 + kOfPart * (parts - 1) + (p.codes.zeros == Zeros::kMiddle ? 0.0 : kOfZeros);
    const double work = more * static_cast<double>(info.cta_tile.n) * info.cta_tile.k *
                        (rates.weight_us + rates.token_us * info.cta_tile.m);
    const double of_warp = info.tma ? work : work * kWarps * kWarpThreads / info.threads;
    return std::max(static_cast<double>(side_by_side) * work, rates.latency_us + rates.latency_of_work * of_warp);
  }

  // Of computing, which takes so long without it, and memory, the longer one, more or less.
  double with_memory(double compute_us) const {
    const double batch = static_cast<double>(p.batch), M = static_cast<double>(p.M), N = static_cast<double>(p.N),
                 K = static_cast<double>(p.K);
    const double weights = batch * N * K * info.bits / 8, tokens = 2.0 * batch * M * K;
    const double dram = (weights + tokens + 2.0 * batch * M * N) / rates.dram_bytes_per_us;
    const double l2 = (static_cast<double>(columns) * tokens + static_cast<double>(rows) * weights) /
                      rates.l2_bytes_per_us * std::pow(64.0 / info.cta_tile.m, rates.l2_power);
    const auto fourth = [](double x) { return x * x * x * x; };
    return std::sqrt(std::sqrt(fourth(compute_us) + fourth(dram) + fourth(l2)));
  }
};

// Of CTAs that share K without being a cluster.
double mma_cost_us(const Costs& costs, int64_t splits) {
  const Rates& rates = costs.rates;
  const KernelInfo& info = costs.info;
  const Codes& codes = costs.p.codes;
  const bool floats = codes.scale_dtype == DType::kF32;
  const int parts = floats ? info.warp_tile.k / info.group_multiple
                           : scaled_parts(codes.group_size, costs.p.K, info.warp_tile.k, info.group_multiple);
  const int64_t resident = int4_mma_resident_ctas(info.resident_ctas, info.warp_tile, parts,
                                                  floats || codes.zeros != Zeros::kMiddle),
                ctas = costs.tiles * splits, share = ceil_div(ctas, planned_multiprocessors(costs.p.sm));
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
  // Tiles that a CTA writes before others of its own. Where warpgroups take turns they do so meanwhile.
  if (costs.info.split_k) {
    cost +=
        rates.tile_element_us * partial * static_cast<double>(ceil_div(ceil_div(costs.tiles, clusters), splits) - 1);
  }
  if (splits > 1) {
    cost += rates.split_us + rates.split_cta_us * static_cast<double>(splits) + rates.partial_element_us * partial;
    if (costs.tiles > clusters) cost += rates.parked_element_us * static_cast<double>(costs.elements);
  }
  return cost;
}

double cost_us(const Costs& costs, int64_t splits) {
  if (costs.tiles == 0) return 0.0;
  return costs.info.tma ? wgmma_cost_us(costs, splits) : mma_cost_us(costs, splits);
}

struct Plan {
  int64_t splits;
  double cost_us;
};

Plan plan(const KernelInfo& info, const Problem& p) {
  const Costs costs = {info.tma ? kWgmma : kMma, info, p};
  if (p.split.splits > 0) return {p.split.splits, cost_us(costs, p.split.splits)};
  Plan best = {1, cost_us(costs, 1)};
  const int64_t tiles = costs.tiles;
  if (tiles == 0 || !info.split_k) return best;
  // More CTAs than fit the GPU twice would only make more sums; and where CTAs that stay have four tiles each, it
  // matters little that some have one more.
  const int64_t at_once = planned_multiprocessors(p.sm) * info.resident_ctas, useful = !info.tma ? 2 * at_once / tiles
                                                                                       : tiles < 4 * at_once
                                                                                           ? kMostMixedClusterSplits
                                                                                           : 1;
  const int64_t most = std::min(costs.k_tiles, useful);
  for (int64_t splits = 2; splits <= most; ++splits) {
    const double cost = cost_us(costs, splits);
    if (cost < best.cost_us) best = {splits, cost};
  }
  return best;
}

}  // namespace

int64_t mixed_clusters(const KernelInfo& info, int64_t splits, int64_t sms) {
  return clusters_of(info.resident_ctas, splits, sms);
}

KSplit mixed_k_split(const KernelInfo& info, const Problem& p) { return {0, plan(info, p).splits}; }

double estimated_mixed_cost(const Kernel& kernel, const Problem& p) {
  constexpr double kCopyUs = 2.5;  // of tokens whose rows have to be padded
  const double cost = plan(kernel.info, p).cost_us;
  return p.empty() || kernel.copied_bytes(p) == 0 ? cost : cost + kCopyUs;
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
