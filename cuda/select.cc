// Which kernel to run when the user names none.
//
// The later rung of the ladder wins: each was written to beat the one before it. Among the tile configurations of one
// family the model below decides. It counts the work of whole waves (a CTA tile that hangs over the edge, or a wave
// that leaves multiprocessors idle, costs as much as a full one) and charges small tiles for the operand bytes they
// read again: a tile of m x n needs (1/m + 1/n) operand elements for each multiply-add (arithmetic intensity, see
// Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009).
#include <algorithm>

#include "gemm.h"

namespace jaxgemm {
namespace {

// Multiprocessors of the largest part of each architecture: A100 108, H100 and H200 SXM 132. Only ratios matter.
int64_t multiprocessors(int sm) { return sm < 90 ? 108 : 132; }

// Multiply-adds that cost as much time as one operand element read. Fitted to wmma_tiled on an H200 at 4096^3, where
// square tiles of 32, 64 and 128 took 1523, 774 and 509 us (3.0 : 1.5 : 1; the model says 3.0 : 1.7 : 1).
constexpr double kFmasPerElement = 128.0;

}  // namespace

double estimated_cost(const Kernel& kernel, const Problem& p) {
  const Tile& tile = kernel.info.cta_tile;
  const int64_t tiles = ((p.M + tile.m - 1) / tile.m) * ((p.N + tile.n - 1) / tile.n) * p.batch;
  const int64_t waves = (tiles + multiprocessors(p.sm) - 1) / multiprocessors(p.sm);
  const double reread = kFmasPerElement * (1.0 / tile.m + 1.0 / tile.n);
  return static_cast<double>(waves) * tile.m * tile.n * (1.0 + reread) * static_cast<double>(std::max<int64_t>(p.K, 1));
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
