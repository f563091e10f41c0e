// Which kernel to run for quantised weights, and over how many CTAs it splits K.
//
// A model like that of select.cc, of what takes time here. It adds up, in microseconds of an H200:
//   k-tiles of the multiprocessor with the most CTAs, each at least its latency: making numbers of codes takes the same
//     for any number of tokens, multiplying them takes more for more;
//   or reading the weights from DRAM, and tokens from L2 for each column of tiles, if that takes longer;
//   CTAs, of those that one multiprocessor has after another: filling the pipeline and writing the sums;
//   where K is split, adding up: within a cluster, or with a second kernel and the traffic of partial sums.
// The constants were fitted to measurements of both families on an H200, group 128 and bfloat16, of the benchmarks'
// seven matrices with 1 to 4096 tokens (tests/chooser_times_mixed.json): it meets those that take at most twice as long
// as the best (int4_mma: 1.6 times) within 6 % (int4_wgmma) and 7 % (int4_mma), root mean square. Its choices take 2.2
// % longer than the best on average, and at most 14 % (32 tokens, 8192 x 28672).
#include "select_mixed.h"

#include <algorithm>
#include <cmath>

namespace jaxgemm {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many CTAs in clusters of so many run at the same time, one to a multiprocessor: what
// cudaOccupancyMaxActiveClusters says of an H200, whose clusters have to fit its GPCs.
int64_t ctas_at_once(int64_t cluster, int64_t sms) {
  constexpr int64_t kUsable[kMostMixedClusterSplits] = {132, 132, 117, 120, 110, 102, 105, 120}, kOf = 132;
  return std::max<int64_t>(1, kUsable[cluster - 1] * sms / kOf);
}

struct Rates {
  double weight_us, token_us;          // of a multiprocessor: of a weight, and of its product with a token
  double latency_us, latency_of_work;  // of a k-tile: a constant, and how much of its work
  double dram_bytes_per_us, l2_bytes_per_us;
  double launch_us, cta_us, cta_element_us;
  double split_us, partial_element_us;  // where K is split; and of partial sums in memory
};
constexpr Rates kMma = {0.0, 1.19e-6, 0.750, 0.316, 4.62e6, 4.62e6, 3.11, 0.897, 0.0, 1.85, 1.68e-6},
                kWgmma = {1.40e-5, 2.27e-7, 0.0848, 0.891, 3.45e6, 8.49e6, 2.33, 2.54, 1.52e-4, 0.0, 0.0};

double cost_us(const KernelInfo& info, const Problem& p, int64_t splits) {
  const Rates& rates = info.tma ? kWgmma : kMma;
  const Tile& tile = info.cta_tile;
  const int64_t sms = planned_multiprocessors(p.sm), rows = ceil_div(p.M, tile.m), columns = ceil_div(p.N, tile.n);
  const int64_t ctas = rows * columns * p.batch * splits, resident = info.resident_ctas;
  if (ctas == 0) return 0.0;
  const int64_t share = ceil_div(ctas, info.tma ? ctas_at_once(splits, sms) : sms);
  const double elements = static_cast<double>(tile.m) * tile.n;
  const double work = static_cast<double>(tile.n) * tile.k * (rates.weight_us + rates.token_us * tile.m);
  const auto k_tile_us = [&](int64_t side_by_side) {
    if (side_by_side == 0) return 0.0;
    return std::max(static_cast<double>(side_by_side) * work, rates.latency_us + rates.latency_of_work * work);
  };
  const double k_tiles = static_cast<double>(ceil_div(ceil_div(p.K, tile.k), splits));
  const double compute =
      k_tiles * (static_cast<double>(share / resident) * k_tile_us(resident) + k_tile_us(share % resident));
  const double batch = static_cast<double>(p.batch), M = static_cast<double>(p.M), N = static_cast<double>(p.N),
               K = static_cast<double>(p.K);
  const double weights = batch * N * K * info.bits / 8, token_bytes = 2.0 * batch * M * K;
  const double dram = (weights + token_bytes + 2.0 * batch * M * N) / rates.dram_bytes_per_us;
  const double l2 =
      (static_cast<double>(columns) * token_bytes + static_cast<double>(rows) * weights) / rates.l2_bytes_per_us;
  const auto fourth = [](double x) { return x * x * x * x; };
  double cost = rates.launch_us + std::sqrt(std::sqrt(fourth(compute) + fourth(dram) + fourth(l2))) +
                static_cast<double>(ceil_div(share, resident)) * (rates.cta_us + rates.cta_element_us * elements);
  if (splits > 1) cost += rates.split_us + rates.partial_element_us * elements * static_cast<double>(ctas);
  return cost;
}

struct Plan {
  int64_t splits;
  double cost_us;
};

Plan plan(const KernelInfo& info, const Problem& p) {
  if (p.split.splits > 0) return {p.split.splits, cost_us(info, p, p.split.splits)};
  Plan best = {1, cost_us(info, p, 1)};
  const Tile& tile = info.cta_tile;
  const int64_t tiles = ceil_div(p.M, tile.m) * ceil_div(p.N, tile.n) * p.batch;
  if (tiles == 0) return best;
  // More CTAs than fit the GPU twice would only make more sums.
  const int64_t fit = 2 * planned_multiprocessors(p.sm) * info.resident_ctas / tiles;
  const int64_t most = std::min({ceil_div(p.K, tile.k), fit, info.tma ? int64_t{kMostMixedClusterSplits} : fit});
  for (int64_t splits = 2; splits <= most; ++splits) {
    const double cost = cost_us(info, p, splits);
    if (cost < best.cost_us) best = {splits, cost};
  }
  return best;
}

}  // namespace

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
