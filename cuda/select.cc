// Which kernel to run when the user names none.
//
// The later rung of the ladder wins: each was written to beat the one before it. Among the tile configurations of one
// family, and between the last two, the model below decides, which also says over how many CTAs K is split. It adds up,
// for the multiprocessor with the most work, in microseconds of an H200:
//   k-tiles: of the CTAs that run side by side, each takes its turn at the tensor cores, and pays for the operand
//     elements that a small tile reads again: a tile of m x n needs (1/m + 1/n) of them for each multiply-add (see
//     Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009). No k-tile takes less than its latency, and all
//     together no less than reading the operands from DRAM;
//   tiles: filling the pipeline and writing the sums, once for each CTA in turn (whole waves of CTAs: what hangs over
//   an
//     edge, and the multiprocessors that a last wave leaves idle, cost as much as work);
//   where K is split, a second kernel and the traffic of the partial sums;
//   where operands are copied into the workspace, those copies.
// The constants were fitted on an H200: of wmma_tiled to square tiles of 32, 64 and 128 at 4096^3, which took 1523, 774
// and 509 us; of mma_multistage and wgmma to 735 and 578 measurements of their tiles of 16-bit elements, with K split
// over 1 to 64 CTAs, of 55 problems between 256^3, 1 x 8192 x 28672, 256 x 256 x 65536 and 2048 x 28672 x 8192, each
// with cold caches, as a program finds them whose weights do not fit L2 (tests/chooser_times.json). It meets those of
// mma_multistage within 6 % (root mean square), those of wgmma that are not much slower than the best within 9 %. What
// it chooses takes 0.6 % longer than the best on average, and at most 12 % (64 x 512^3).
#include <algorithm>

#include "gemm.h"

namespace jaxgemm {
namespace {

// Multiprocessors of the largest part of each architecture: A100 108, H100 and H200 SXM 132. Only ratios matter.
int64_t multiprocessors(int sm) { return sm < 90 ? 108 : 132; }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// CTAs that fit a multiprocessor of compute capability 9.0, and nearly so on the others, which is enough to rank
// (CUDA C++ programming guide, "Technical Specifications per Compute Capability"); registers are estimated from the
// accumulators.
int64_t resident_ctas(const KernelInfo& info, int sm) {
  constexpr int kThreads = 2048, kRegisters = 65536, kReservedSmemBytes = 1024;
  const int accumulators = std::max(1, info.warp_tile.m * info.warp_tile.n / 32);
  const int registers = std::min(255, 48 + accumulators * 7 / 5);
  return std::max(1, std::min({kThreads / info.threads, kRegisters / (registers * info.threads),
                               max_smem_bytes(sm) / (info.smem_bytes + kReservedSmemBytes)}));
}

// What a family's CTAs cost. A multiply-add is one of 16-bit elements; of others as many are counted as take its time.
struct Rates {
  double fmas_per_us;                      // of a multiprocessor, were there nothing to load
  double fmas_per_element;                 // that take as long as loading an operand element
  double min_latency_us, latency_per_us;   // of a k-tile that has the multiprocessor to itself
  double cta_us, cta_element_us;           // once for a CTA, and for each element of its tile
  double dram_bytes_per_us;                // at which operands are read
  double reduce_us, partial_bytes_per_us;  // of the second kernel, and of what it and the first move

  double work_us(const KernelInfo& info, int products) const {
    const Tile& tile = info.cta_tile;
    const double fmas = 0.5 * tile.m * tile.n * tile.k * static_cast<double>(size_bytes(info.dtypes[0].lhs)) * products;
    return fmas / fmas_per_us * (1.0 + fmas_per_element * (1.0 / tile.m + 1.0 / tile.n));
  }

  // A k-tile of each of `ctas` that run side by side.
  double k_tile_us(const KernelInfo& info, int products, int64_t ctas) const {
    const double work = work_us(info, products);
    return ctas == 0 ? 0.0 : std::max(static_cast<double>(ctas) * work, min_latency_us + latency_per_us * work);
  }
};
constexpr Rates kUnpipelined = {3.1e6, 128.0, 0.7, 0.1, 0.9, 2.7e-4, 3.9e6, 3.3, 3.7e6},
                kPipelined = {3.45e6, 69.5, 0.147, 0.792, 1.7, 5.96e-5, 4.66e6, 3.2, 4.22e6},
                kWarpSpecialised = {3.31e6, 3.7, 0.0856, 0.565, 0.78, 5.17e-5, 4.315e6, 4.72, 6.08e6};

constexpr double kCopyUs = 2.5, kCopiedBytesPerUs = 1.5e6;  // of copies of operands in the workspace

// Of sums that the CTAs of a cluster add up: for a tile, and for each element of it.
constexpr double kClusterSumsUs = 2.54, kClusterSumsElementUs = 2.84e-5;

// How many clusters of two or three CTAs run at the same time, one CTA to a multiprocessor: what
// cudaOccupancyMaxActiveClusters says of an H200, whose clusters have to fit its GPCs.
int64_t clusters_at_once(int64_t ctas) { return ctas == 2 ? 66 : 39; }

// Whether the rates were fitted to measurements of the family itself.
bool calibrated(const KernelInfo& info) { return info.stages > 2; }

double cost_us(const KernelInfo& info, const Problem& p, int64_t tiles, int64_t k_tiles, int64_t splits) {
  const Rates& rates = info.tma ? kWarpSpecialised : calibrated(info) ? kPipelined : kUnpipelined;
  const int64_t ctas = tiles * splits, sms = multiprocessors(p.sm), resident = resident_ctas(info, p.sm);
  const bool in_cluster = reduces_in_cluster(info, splits);
  const int64_t share = in_cluster ? ceil_div(tiles, clusters_at_once(splits)) : ceil_div(ctas, sms);
  const int products = p.lhs_dtype == DType::kF32 && p.precision == Precision::kHighest ? 3 : 1;  // 3xTF32
  const double k_tile = static_cast<double>(share / resident) * rates.k_tile_us(info, products, resident) +
                        rates.k_tile_us(info, products, share % resident);
  const double elements = static_cast<double>(p.batch) * static_cast<double>(p.K) * static_cast<double>(p.M + p.N);
  const double dram = elements * static_cast<double>(size_bytes(p.lhs_dtype)) / rates.dram_bytes_per_us;
  const double tile_elements = static_cast<double>(info.cta_tile.m) * info.cta_tile.n;
  double cost = std::max(static_cast<double>(ceil_div(k_tiles, splits)) * k_tile, dram) +
                static_cast<double>(ceil_div(share, resident)) * (rates.cta_us + rates.cta_element_us * tile_elements);
  if (in_cluster) {
    cost += kClusterSumsUs + kClusterSumsElementUs * tile_elements;
  } else if (splits > 1) {
    const double partial_bytes = 2.0 * sizeof(float) * static_cast<double>(ctas) * tile_elements;
    cost += rates.reduce_us + partial_bytes / rates.partial_bytes_per_us;
  }
  return cost;
}

struct Plan {
  int64_t splits;
  double cost_us;
};

Plan plan(const KernelInfo& info, const Problem& p) {
  const int64_t tile_rows = ceil_div(p.M, info.cta_tile.m * info.cluster_ctas) * info.cluster_ctas;
  const int64_t tiles = tile_rows * ceil_div(p.N, info.cta_tile.n) * p.batch;
  const int64_t k_tiles = std::max<int64_t>(1, ceil_div(p.K, info.cta_tile.k));
  Plan best = {1, cost_us(info, p, tiles, k_tiles, 1)};
  if (!info.split_k || tiles == 0) return best;
  // More CTAs than fit side by side would only make more partial sums.
  const int64_t most = std::min(k_tiles, multiprocessors(p.sm) * resident_ctas(info, p.sm) / tiles);
  for (int64_t splits = 2; splits <= most; ++splits) {
    const double cost = cost_us(info, p, tiles, k_tiles, splits);
    if (cost < best.cost_us) best = {splits, cost};
  }
  return best;
}

}  // namespace

int64_t split_count(const KernelInfo& info, const Problem& p) { return plan(info, p).splits; }

double estimated_cost(const Kernel& kernel, const Problem& p) {
  const double cost = plan(kernel.info, p).cost_us;
  const int64_t copied_bytes = kernel.copied_bytes == nullptr ? 0 : kernel.copied_bytes(p);
  return copied_bytes == 0 ? cost : cost + kCopyUs + static_cast<double>(copied_bytes) / kCopiedBytesPerUs;
}

const Kernel* select(const Problem& p, std::string_view family) {
  const Kernel* best = nullptr;
  for (const Kernel* kernel : kernels()) {
    if (!family.empty() && kernel->info.family != family) continue;
    if (!why_not(*kernel, p).empty()) continue;
    const bool comparable = best != nullptr && (best->info.family == kernel->info.family ||
                                                (calibrated(best->info) && calibrated(kernel->info)));
    if (!comparable || estimated_cost(*kernel, p) <= estimated_cost(*best, p)) best = kernel;
  }
  return best;
}

}  // namespace jaxgemm
