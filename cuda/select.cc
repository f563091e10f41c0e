// Which kernel to run when the user names none.
//
// The later rung of the ladder wins: each was written to beat the one before it. Among the tile configurations of one
// family the model below decides. A problem takes little more than the longer of two times:
//   arithmetic: a multiprocessor works off its share of the CTA tiles, whole tiles each (what hangs over an edge, and
//     the multiprocessors that a last wave leaves idle, cost as much as work), and small tiles pay for the operand
//     elements that they read again: a tile of m x n needs (1/m + 1/n) of them for each multiply-add (see Williams,
//     Waterman and Patterson, "Roofline", CACM 52(4), 2009);
//   latency: the k-tiles of one CTA follow one another, each waiting for its loads and barriers, and no more CTAs run
//     side by side than fit a multiprocessor.
// The constants were fitted to wmma_tiled on an H200 (benchmarks/results): square tiles of 32, 64 and 128 at 4096^3
// took 1523, 774 and 509 us, and a k-tile without competition about 0.7 us.
#include <algorithm>

#include "gemm.h"

namespace jaxgemm {
namespace {

constexpr double kUnhidden = 0.1;  // how much of the shorter time the longer one does not cover

// Multiprocessors of the largest part of each architecture: A100 108, H100 and H200 SXM 132. Only ratios matter.
int64_t multiprocessors(int sm) { return sm < 90 ? 108 : 132; }

constexpr double kFmasPerElement = 128.0;  // multiply-adds that take as long as reading one operand element
constexpr double kFmasPerKTile = 2.2e6;    // and as long as one k-tile that nothing else hides

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// CTAs that fit a multiprocessor of compute capability 9.0, and nearly so on the others, which is enough to rank
// (CUDA C++ programming guide, "Technical Specifications per Compute Capability"); registers are estimated from the
// accumulators.
int64_t resident_ctas(const KernelInfo& info) {
  constexpr int kThreads = 2048, kRegisters = 65536, kReservedSmemBytes = 1024;
  const int accumulators = std::max(1, info.warp_tile.m * info.warp_tile.n / 32);
  const int registers = std::min(255, 48 + accumulators * 7 / 5);
  return std::max(1, std::min({kThreads / info.threads, kRegisters / (registers * info.threads),
                               kMaxSmemBytes / (info.smem_bytes + kReservedSmemBytes)}));
}

}  // namespace

int64_t split_count(const KernelInfo& info, const Problem& p) {
  if (!info.split_k) return 1;
  const int64_t tiles = ceil_div(p.M, info.cta_tile.m) * ceil_div(p.N, info.cta_tile.n) * p.batch;
  const int64_t k_tiles = ceil_div(p.K, info.cta_tile.k);
  const int64_t room = multiprocessors(p.sm) * resident_ctas(info) / std::max<int64_t>(1, tiles);
  return std::max<int64_t>(1, std::min(room, k_tiles / 8));
}

double estimated_cost(const Kernel& kernel, const Problem& p) {
  const KernelInfo& info = kernel.info;
  const Tile& tile = info.cta_tile;
  const int64_t tiles = ceil_div(p.M, tile.m) * ceil_div(p.N, tile.n) * p.batch;
  const int64_t k_tiles = std::max<int64_t>(1, ceil_div(p.K, tile.k));
  const double tile_fmas = static_cast<double>(tile.m) * tile.n * tile.k * static_cast<double>(k_tiles) *
                           (1.0 + kFmasPerElement * (1.0 / tile.m + 1.0 / tile.n));
  const int64_t share = ceil_div(tiles, multiprocessors(p.sm));
  const int64_t rounds = ceil_div(tiles, multiprocessors(p.sm) * resident_ctas(info));
  const double arithmetic = static_cast<double>(share) * tile_fmas;
  const double latency = static_cast<double>(rounds * k_tiles) * kFmasPerKTile;
  return std::max(arithmetic, latency) + kUnhidden * std::min(arithmetic, latency);
}

const Kernel* select(const Problem& p, std::string_view family) {
  const Kernel* best = nullptr;
  for (const Kernel* kernel : kernels()) {
    if (!family.empty() && kernel->info.family != family) continue;
    if (!why_not(*kernel, p).empty()) continue;
    const bool same_rung = best != nullptr && best->info.family == kernel->info.family;
    if (!same_rung || estimated_cost(*kernel, p) <= estimated_cost(*best, p)) best = kernel;
  }
  return best;
}

}  // namespace jaxgemm
