// Which kernel to run for quantised weights, and over how many CTAs it splits K: a model like that of select.cc, of
// what takes time here, reading the weights, and turning codes into numbers.
#include "select_mixed.h"

#include <algorithm>

namespace jaxgemm {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Microseconds of an H200.
double cost_us(const KernelInfo& info, const Problem& p, int64_t splits) {
  constexpr double kDramBytesPerUs = 4.1e6, kL2BytesPerUs = 5.5e6, kTileUs = 3.0, kSplitUs = 3.0;
  const int64_t sms = planned_multiprocessors(p.sm);
  const Tile& tile = info.cta_tile;
  const int64_t tiles = ceil_div(p.M, tile.m) * ceil_div(p.N, tile.n) * p.batch;
  const double weights = static_cast<double>(p.batch) * static_cast<double>(p.N) * static_cast<double>(p.K);
  const double dram = weights * info.bits / 8 / kDramBytesPerUs;
  const int64_t ctas = tiles * splits;
  const double tokens = static_cast<double>(tiles) * tile.m * static_cast<double>(p.K) * 2 / kL2BytesPerUs;
  // Of a multiprocessor, for a weight: codes to numbers, and a product with each eight tokens.
  const double weight_us = (1.9 + 0.35 * tile.m / 8) / 128 / 1750;
  const double each = static_cast<double>(tile.n) * static_cast<double>(ceil_div(p.K, splits)) * weight_us;
  const double work = each * static_cast<double>(ceil_div(ctas, sms));
  return kTileUs + std::max({dram, tokens, work}) + 0.3 * (dram + tokens + work) + (splits > 1 ? kSplitUs : 0.0);
}

struct Plan {
  int64_t splits;
  double cost_us;
};

Plan plan(const KernelInfo& info, const Problem& p) {
  if (p.split.splits > 0) return {p.split.splits, cost_us(info, p, p.split.splits)};
  Plan best = {1, cost_us(info, p, 1)};
  const int64_t tiles = ceil_div(p.M, info.cta_tile.m) * ceil_div(p.N, info.cta_tile.n) * p.batch;
  const int64_t k_tiles = ceil_div(p.K, info.cta_tile.k),
                most = tiles == 0 ? 1 : 4 * planned_multiprocessors(p.sm) / tiles;
  for (int64_t splits = 2; info.split_k && splits <= std::min(most, k_tiles); ++splits) {
    const double cost = cost_us(info, p, splits);
    if (cost < best.cost_us) best = {splits, cost};
  }
  return best;
}

}  // namespace

KSplit mixed_k_split(const KernelInfo& info, const Problem& p) { return {0, plan(info, p).splits}; }

double estimated_mixed_cost(const Kernel& kernel, const Problem& p) {
  constexpr double kCopyUs = 2.5;
  return plan(kernel.info, p).cost_us + (kernel.copied_bytes(p) == 0 ? 0.0 : kCopyUs);
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
