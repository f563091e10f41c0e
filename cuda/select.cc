// Which kernel to run when the user names none.
//
// The later rung of the ladder wins: each was written to beat the one before it; only those that would compute every
// sum a second time come behind all others (epilogue/recompute.cuh), and so does gemv where there are several rows and
// several columns, but for small operands whose rows begin anywhere. Among the tile configurations of one family, and
// between the last three and, where there is little to multiply, those of mma that load several k-tiles at once, the
// model below decides, which also says over how many CTAs K is split. It adds up, for the multiprocessor with the most
// work, in microseconds of an H200:
//   k-tiles: of the CTAs that run side by side, each takes its turn at the tensor cores, and pays for the operand
//     elements that a small tile reads again: a tile of m x n needs (1/m + 1/n) of them for each multiply-add (see
//     Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009). No k-tile takes less than its latency, and all
//     together no less than reading the operands from DRAM; rows that begin within a line of the L2 cache take longer;
//   tiles: filling the pipeline and writing the sums, once for each CTA in turn (whole waves of CTAs: what hangs over
//     an edge, and the multiprocessors that a last wave leaves idle, cost as much as work), unless another warpgroup of
//     the CTA multiplies meanwhile;
//   where K is split, a second kernel and the traffic of the partial sums. CTAs that stay may first take as many whole
//     tiles each as there are for all, and split K of those that are left over only;
//   where operands are copied into the workspace, those copies; where rows that begin anywhere are moved within shared
//     memory, moving them, for each CTA and each k-tile.
// The constants were fitted on an H200: of wmma_tiled to square tiles of 32, 64 and 128 at 4096^3, which took 1523, 774
// and 509 us; of mma_multistage and wgmma to 852 and 2936 measurements of their tiles of 16-bit elements, with K split
// over 1 to 64 CTAs, of 77 problems between 256^3, 1 x 8192 x 28672, 256 x 256 x 65536 and 8192 x 28672 x 2048, one
// after the other with the operands in DRAM (tests/chooser_times*.json, by `python -m benchmarks.chooser_times`): the
// large ones at the GPU's power limit, as in a program that trains. The choices take 0.5 % longer than the best on
// average, and at most 10 % (1 x 4096 x 14336).
#include <algorithm>
#include <cmath>

#include "gemm.h"
#include "select_mixed.h"
#include "tile/at_once.h"
#include "tile/padding.h"
#include "tile/run_of_rows.h"

namespace jaxgemm {
namespace {

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
  double split_row_us;                     // of a row of a k-tile that lies in two lines of the L2 cache

  double work_us(const KernelInfo& info, int products) const {
    const Tile& tile = info.cta_tile;
    const double fmas = 0.5 * tile.m * tile.n * tile.k * static_cast<double>(size_bytes(info.dtypes[0].lhs)) * products;
    const int rows = tile.m * info.cluster_ctas;  // that share what is loaded of rhs
    return fmas / fmas_per_us * (1.0 + fmas_per_element * (1.0 / rows + 1.0 / tile.n));
  }

  // A k-tile of each of `ctas` that run side by side, with so many rows that lie in two lines.
  double k_tile_us(const KernelInfo& info, int products, int split_rows, int64_t ctas) const {
    const double work = work_us(info, products), all = static_cast<double>(ctas);
    if (ctas == 0) return 0.0;
    return std::max({all * work, min_latency_us + latency_per_us * work, all * split_rows * split_row_us});
  }
};
constexpr Rates kUnpipelined = {3.1e6, 128.0, 0.7, 0.1, 0.9, 2.7e-4, 3.9e6, 3.3, 3.7e6, 0.0},
                kPipelined = {3.51e6, 66.4, 0.173, 0.664, 2.30, 2.34e-5, 4.50e6, 1.84, 3.14e6, 2.57e-3},
                kWarpSpecialised = {3.37e6, 5.64, 0.0591, 0.782, 0.798, 1.90e-5, 4.39e6, 4.77, 4.50e6, 1.98e-3};

// Of copies of operands in the workspace: of each, as one kernel waits for the other, and of what they write.
constexpr double kCopyUs = 4.55, kCopiedBytesPerUs = 2.35e6;

// Of sums that the CTAs of a cluster add up: for a tile, and for each element of it.
constexpr double kClusterSumsUs = 3.16, kClusterSumsElementUs = 1.18e-4;

// What 128 columns of a k-tile take longer that pass through registers byte by byte (mainloop/sm90_rhs_registers.cuh),
// shared by the warpgroups that do so at the same time: at 4096^3 tiles of 64 x 128 took 188 us for 119 with K
// contiguous, of 128 x 128 110 for 94.
constexpr double kByteFragmentsUs = 0.12;

double fragments_us(const KernelInfo& info, const Problem& p) {
  constexpr int kWarpgroup = 128, kCols = 128;
  const bool bytes = info.tma && size_bytes(p.rhs_dtype) == 1 && !p.rhs.transposed;
  return bytes ? kByteFragmentsUs * info.cta_tile.n / kCols / (info.threads / kWarpgroup - 1) : 0.0;
}

// From so many microseconds on CTAs take tiles: the launch that clears their counter is next to nothing then.
constexpr double kTakenFromUs = 300.0;
bool may_take_tiles(const KernelInfo& info, const Problem& p) {
  return info.tma && !p.has_alpha && !p.has_bias && p.activation == Activation::kNone &&
         p.precision == Precision::kDefault;
}

// Where rows of out do not begin at vectors (epilogue/rows_out.cuh, RowPhases): of a tile, and of its bytes and rows.
constexpr double kUnalignedOutUs = 1.25, kUnalignedOutByteUs = 4.5e-5, kUnalignedOutRowUs = 9.6e-3;

// What is left of that where a tile has whole rows of out, and they go out in runs.
constexpr double kRunsShare = 0.57;
bool writes_runs(const KernelInfo& info, const Problem& p) {
  const int most = most_run_cols(static_cast<int>(size_bytes(p.out_dtype)));
  const bool sums_apart = p.lhs_dtype == DType::kF32 && p.precision == Precision::kHighest;
  return info.tma && info.split_k && !sums_apart && p.out.ld == p.N && p.N <= std::min(info.cta_tile.n, most);
}

constexpr double kPairsUs = 1.62;  // of CTAs that load for each other, and so wait for each other

// Where a CTA's consumers take turns, one of them writes its tile while the other one multiplies: what of a tile's cost
// is left of all but the last. When CTAs of a cluster add up their sums, one of the two only waits.
constexpr double kTurnShare = 0.189, kIdleTurnUs = 0.558;
bool takes_turns(const KernelInfo& info) {
  constexpr int kProducerWarps = 4;
  return info.tma && (info.threads / kWarpSize - kProducerWarps) * info.warp_tile.m > info.cta_tile.m;
}

// How many clusters of two or three CTAs run at the same time, one CTA to a multiprocessor: what
// cudaOccupancyMaxActiveClusters says of an H200, whose clusters have to fit its GPCs.
int64_t clusters_at_once(int64_t ctas) { return ctas == 2 ? 66 : 39; }

// Whether a kernel computes rows of out one by one, or, of a single column, elements.
bool by_vector(const KernelInfo& info) { return info.cta_tile.m == 1; }

// Whether what the model says of the family is to be compared with what it says of others of these.
bool calibrated(const KernelInfo& info) { return info.stages > 2 || by_vector(info); }

// Whether a kernel's own sums are thrown away, all of them.
bool recomputes_all(const KernelInfo& info, const Problem& p) {
  return info.tf32 && p.lhs_dtype == DType::kF32 && p.precision == Precision::kHighest && p.K <= kFewProducts;
}

// What a kernel that loads by TMA takes at least, however little there is to do.
constexpr double kLeastTmaUs = 1.6;

// What two things take that go on side by side: of which one takes much longer, no more than that one, else more than
// either. Their 4-norm: with the maximum, tiles of which all wait for DRAM would be equal, and which of them is chosen
// a matter of rounding.
double both_us(double a, double b) { return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b)); }

// Whether the rows of an operand or of out are made of whole vectors.
bool aligned(const MatrixView& view, DType dtype) { return begins_at_vectors(view, size_bytes(dtype)); }

// Of kernels that load several k-tiles at once: the CTAs of a multiprocessor, and how often each waits for its loads,
// which is nearly all that it does. They are rivals of the pipelined families where they were measured to be
// (tests/chooser_times_small.json): where CTAs run side by side in few waves, and sums are short.
struct AtOnce {
  bool in_vectors, along_k;
  int64_t ctas, waits;

  AtOnce(const KernelInfo& info, const Problem& p)
      : in_vectors(made_of_vectors(p.lhs, size_bytes(p.lhs_dtype)) && made_of_vectors(p.rhs, size_bytes(p.rhs_dtype))),
        along_k(!p.lhs.transposed && p.rhs.transposed) {
    const int64_t tiles = p.batch * ceil_div(p.M, info.cta_tile.m) * ceil_div(p.N, info.cta_tile.n);
    ctas = ceil_div(tiles, planned_multiprocessors(p.sm));
    waits = ceil_div(p.K, int64_t{info.cta_tile.k} * loaded_at_once(info.tiles_at_once, in_vectors && along_k));
  }
};

// Of these, tiles of more than 32 x 32. They were only measured to gain where both operands come in vectors along K.
bool large_at_once(const KernelInfo& info) { return info.cta_tile.m > 32; }

bool at_once_pays(const KernelInfo& info, const Problem& p) {
  constexpr int64_t kLeastSide = 8, kMostK = 200, kMostWaves = 4;
  if (info.tiles_at_once == 1 || std::min(p.M, p.N) < kLeastSide || p.K > kMostK) return false;
  const AtOnce at(info, p);
  return at.ctas <= kMostWaves * info.resident_ctas && (!large_at_once(info) || (at.in_vectors && at.along_k));
}

// Less a microsecond, which the estimates of others leave out. The first CTA and its first wait; each further wait;
// each further CTA, which rows of out that begin anywhere make longer, or, of operands that come element by element,
// each element that a lane loads for it. Fitted on an H200.
double at_once_us(const KernelInfo& info, const Problem& p) {
  constexpr double kLeastUs = 1.36, kWaitUs = 0.785, kCtaUs = 0.43, kUnalignedUs = 0.08, kElementUs = 0.0095;
  const AtOnce at(info, p);
  const auto further_waits = static_cast<double>(std::max<int64_t>(at.waits, 1) - 1);
  const auto ctas = static_cast<double>(at.ctas);
  const auto k = static_cast<double>(ceil_div(p.K, info.cta_tile.k) * info.cta_tile.k);
  const bool unaligned = !aligned(p.out, p.out_dtype);
  if (large_at_once(info)) {
    // Here it is K that makes a further CTA longer, and rows that begin anywhere each of them, but for whole ones.
    constexpr double kLargeLeastUs = 1.8, kLargeWaitUs = 1.0, kLargeCtaUs = 0.022, kLargeUnalignedUs = 1.0;
    const bool apart = unaligned && (p.N > info.cta_tile.n || p.out.ld != p.N);
    return kLargeLeastUs + further_waits * kLargeWaitUs + (ctas - 1.0) * k * kLargeCtaUs +
           (apart ? ctas * kLargeUnalignedUs : 0.0);
  }
  const double elements = static_cast<double>(info.warp_tile.m + info.warp_tile.n) / kWarpSize * k;
  const double vectors_us = kCtaUs + (unaligned ? kUnalignedUs : 0.0);
  return kLeastUs + further_waits * kWaitUs + (ctas - 1.0) * (at.in_vectors ? vectors_us : elements * kElementUs);
}

// Of several rows, by_vector() kernels read the matrix again for each. There they were only measured to gain, and what
// the model says of them to hold, where rows of an operand begin anywhere, so that the others copy them or load them
// piece by piece, at the default precision, and up to 3 x 4097 x 100; 2 x 4097 x 4097 took 68 us, where it said 36.
constexpr int64_t kSmallMatrix = int64_t{1} << 20;
bool several_rows_pay(const Problem& p) {
  const bool in_vectors = aligned(p.lhs, p.lhs_dtype) && aligned(p.rhs, p.rhs_dtype);
  return !in_vectors && p.precision == Precision::kDefault && p.K * p.N <= kSmallMatrix;
}

// Of such kernels: a CTA without its k-tiles, and what of it its multiprocessor does for no other meanwhile; what the
// estimates of others leave out where there is one row; DRAM. Then, of vectors and of elements one by one: a ring of
// k-tiles, while others are under way, the instructions of a k-tile alone, and what a row of a k-tile along N takes of
// DRAM's time at least, whatever its length. Fitted on an H200 to choosing among all families
// (tests/chooser_times_gemv.json).
constexpr double kVectorCtaUs = 1.3, kVectorAloneUs = 0.1, kLeftOutUs = 0.7, kVectorDramBytesPerUs = 4.5e6;
struct VectorRates {
  double ring_us, issue_us, row_bytes;
};
constexpr VectorRates kByVectors = {0.58, 0.105, 44.0}, kByElements = {1.2, 0.265, 80.0};
constexpr double kWaitedRowBytes = 80.0;  // the same of waiting

double vector_us(const KernelInfo& info, const Problem& p) {
  const bool column = p.N == 1;
  const MatrixView& matrix = column ? p.lhs : p.rhs;
  const bool along_k = matrix.transposed != column;
  const int64_t outs = column ? p.M : p.N, rows = column ? 1 : p.M, element_bytes = size_bytes(p.lhs_dtype);
  const double row_bytes = static_cast<double>(info.cta_tile.n * element_bytes);
  const auto times = [&](double least) { return along_k ? 1.0 : std::max(1.0, least / row_bytes); };
  const bool vectors = aligned(matrix, p.lhs_dtype) && (along_k || row_bytes >= 16.0);
  const VectorRates& rates = vectors ? kByVectors : kByElements;
  const int64_t ctas = p.batch * rows * ceil_div(outs, info.cta_tile.n), sms = planned_multiprocessors(p.sm);
  const double k_tiles = static_cast<double>(ceil_div(p.K, info.cta_tile.k)), rings = k_tiles / info.stages;
  // The k-tiles of a ring come together, and less takes as long, but for narrow rows. What is waited for grows less
  // than what is loaded: its root fits.
  const double waits = std::max(1.0, rings) + rings * (std::sqrt(times(kWaitedRowBytes)) - 1.0);
  const double cta_us = kVectorCtaUs + waits * rates.ring_us;
  const double wait_us = static_cast<double>(ceil_div(ctas, sms * info.resident_ctas)) * cta_us;
  const double issue_us = static_cast<double>(ceil_div(ctas, sms)) * (kVectorAloneUs + k_tiles * rates.issue_us);
  const double bytes =
      static_cast<double>(p.batch * rows * outs) * static_cast<double>(p.K * element_bytes) * times(rates.row_bytes);
  return both_us(both_us(wait_us, issue_us), bytes / kVectorDramBytesPerUs) - kLeftOutUs;
}

// Of a k-tile that is read where it lies, the rows that take two lines of the L2 cache each, as no row of the operand
// begins with a line. Rows that begin anywhere are copied first, or cost what moving them costs (below).
int split_rows(const KernelInfo& info, const Problem& p) {
  const auto rows = [&](const MatrixView& view, DType dtype, int tile_rows) {
    return view.ld * size_bytes(dtype) % kL2LineBytes != 0 && aligned(view, dtype) ? tile_rows : 0;
  };
  return rows(p.lhs, p.lhs_dtype, info.cta_tile.m) + rows(p.rhs, p.rhs_dtype, info.cta_tile.n / info.cluster_ctas);
}

// Where operands are moved within shared memory (tile/shifted_tile.cuh): what a CTA takes longer, and a k-tile, and for
// each byte of a k-tile that is moved once a CTA and each k-tile; and a k-tile for which only few others are on their
// way, of three that hide what it is waited for. Fitted on an H200 (tests/chooser_times_odd.json).
constexpr double kMovedCtaUs = 0.63, kMovedCtaByteUs = 4.5e-5, kMovedTileUs = 0.134, kMovedTileByteUs = 1.5e-5;
constexpr double kFewAheadUs = 0.27;

double moved_tile_us(const KernelInfo& info) {
  constexpr double kAhead = 3.0;
  return kMovedTileUs + kFewAheadUs * (kAhead / info.shifted_ahead - 1.0);
}

// Of a k-tile, those that are.
int64_t moved_bytes(const KernelInfo& info, const Problem& p) {
  if (info.tma || !calibrated(info)) return 0;
  const Padding padding = vector_padding_that_pays(p, info.cta_tile);
  const int lhs_rows = padding.lhs() || aligned(p.lhs, p.lhs_dtype) ? 0 : info.cta_tile.m;
  const int rhs_rows = padding.rhs() || aligned(p.rhs, p.rhs_dtype) ? 0 : info.cta_tile.n;
  return int64_t{lhs_rows + rhs_rows} * info.cta_tile.k * size_bytes(p.lhs_dtype);
}

double cost_us(const KernelInfo& info, const Problem& p, int64_t tiles, int64_t k_tiles, const KSplit& split) {
  const Rates& rates = info.tma ? kWarpSpecialised : calibrated(info) ? kPipelined : kUnpipelined;
  const int64_t sms = planned_multiprocessors(p.sm), resident = resident_ctas(info, p.sm);
  const int64_t whole = split.whole * info.cluster_ctas, shared = tiles - whole, ctas = shared * split.splits;
  const bool in_cluster = reduces_in_cluster(info, split);
  const int64_t share = in_cluster ? ceil_div(shared, clusters_at_once(split.splits)) : ceil_div(ctas, sms);
  const double waves = static_cast<double>(ceil_div(whole, sms));
  const int products = p.lhs_dtype == DType::kF32 && p.precision == Precision::kHighest ? 3 : 1;  // 3xTF32
  const auto moved = static_cast<double>(moved_bytes(info, p));
  const double alone_us = fragments_us(info, p) + moved * kMovedTileByteUs;
  const auto k_tile_us = [&, rows = split_rows(info, p)](int64_t side_by_side) {
    if (side_by_side == 0) return 0.0;
    const double us = rates.k_tile_us(info, products, rows, side_by_side) + (moved > 0.0 ? moved_tile_us(info) : 0.0);
    return us + static_cast<double>(side_by_side) * alone_us;
  };
  const double k_tile = static_cast<double>(share / resident) * k_tile_us(resident) + k_tile_us(share % resident);
  const double elements = static_cast<double>(p.batch) * static_cast<double>(p.K) * static_cast<double>(p.M + p.N);
  const double dram = elements * static_cast<double>(size_bytes(p.lhs_dtype)) / rates.dram_bytes_per_us;
  const double tile_elements = static_cast<double>(info.cta_tile.m) * info.cta_tile.n;
  const double all_k_tiles = waves * static_cast<double>(k_tiles) * k_tile_us(1) +
                             static_cast<double>(ceil_div(k_tiles, split.splits)) * k_tile;
  const double turns = waves + static_cast<double>(ceil_div(share, resident));
  const double exposed = takes_turns(info) ? std::min(turns, 1.0) + std::max(0.0, turns - 1.0) * kTurnShare : turns;
  const bool parts = split.splits > 1 && !in_cluster;  // are written, not out
  double cost = both_us(all_k_tiles, dram) + exposed * (rates.cta_us + rates.cta_element_us * tile_elements);
  const bool unaligned_rows = p.M > 1 && p.N > 1 && !aligned(p.out, p.out_dtype);
  if (calibrated(info) && tiles > 0 && unaligned_rows) {
    const auto rows = static_cast<double>(p.batch * p.M);
    const double bytes_us = static_cast<double>(p.N * size_bytes(p.out_dtype)) * kUnalignedOutByteUs;
    const double rows_us = static_cast<double>(ceil_div(p.N, info.cta_tile.n)) * kUnalignedOutRowUs;
    const double written = waves + (parts ? 0.0 : static_cast<double>(share));
    const double in_turn = waves + (parts ? 0.0 : static_cast<double>(ceil_div(share, resident)));
    const double all_us =
        in_turn * kUnalignedOutUs + written / static_cast<double>(tiles) * rows * (bytes_us + rows_us);
    cost += writes_runs(info, p) ? all_us * kRunsShare : all_us;
  }
  if (moved > 0.0) cost += turns * (kMovedCtaUs + moved * kMovedCtaByteUs);
  if (info.cluster_ctas > 1) cost += kPairsUs;
  if (info.tma) cost = both_us(cost, kLeastTmaUs);
  if (in_cluster) {
    cost += kClusterSumsUs + kClusterSumsElementUs * tile_elements + (takes_turns(info) ? kIdleTurnUs : 0.0);
  } else if (parts) {
    const double partial_bytes = 2.0 * sizeof(float) * static_cast<double>(ctas) * tile_elements;
    cost += rates.reduce_us + partial_bytes / rates.partial_bytes_per_us;
  }
  return cost;
}

struct Plan {
  KSplit split;
  double cost_us;
};

// The best of `best`, which does not split K, and those that do.
Plan split_plan(const KernelInfo& info, const Problem& p, int64_t tiles, int64_t k_tiles, Plan best) {
  // More CTAs would only make more partial sums: two waves are enough to leave no multiprocessor without much to do,
  // one where CTAs stay.
  const int64_t sms = planned_multiprocessors(p.sm), side_by_side = sms * resident_ctas(info, p.sm);
  const int64_t most_ctas = info.tma ? side_by_side : std::max(2 * sms, side_by_side);
  const auto split = [&](int64_t whole) {
    const int64_t shared = tiles - whole * info.cluster_ctas;
    const int64_t most = shared == 0 ? 1 : std::min(k_tiles, most_ctas / shared);
    for (int64_t splits = 2; splits <= most; ++splits) {
      const double cost = cost_us(info, p, tiles, k_tiles, {whole, splits});
      if (cost < best.cost_us) best = {{whole, splits}, cost};
    }
  };
  split(0);
  const int64_t clusters = sms / info.cluster_ctas;
  if (info.tma && tiles > sms) split(tiles / info.cluster_ctas / clusters * clusters);
  return best;
}

Plan plan(const KernelInfo& info, const Problem& p) {
  if (by_vector(info)) return {{}, vector_us(info, p)};
  if (at_once_pays(info, p)) return {{}, at_once_us(info, p)};
  const int64_t tile_rows = ceil_div(p.M, info.cta_tile.m * info.cluster_ctas) * info.cluster_ctas;
  const int64_t tiles = tile_rows * ceil_div(p.N, info.cta_tile.n) * p.batch;
  const int64_t k_tiles = std::max<int64_t>(1, ceil_div(p.K, info.cta_tile.k));
  if (p.split.splits > 0) {
    const bool able = info.split_k || takes_tiles(p.split);
    const KSplit split = able ? p.split : KSplit{};
    return {split, cost_us(info, p, tiles, k_tiles, takes_tiles(split) ? KSplit{} : split)};
  }
  Plan best = {{}, cost_us(info, p, tiles, k_tiles, {})};
  if (tiles == 0) return best;
  const int64_t sms = planned_multiprocessors(p.sm), clusters = sms / info.cluster_ctas;
  if (info.split_k) best = split_plan(info, p, tiles, k_tiles, best);
  const bool many = tiles / info.cluster_ctas > clusters;
  if (best.split.splits == 1 && best.cost_us >= kTakenFromUs && many && may_take_tiles(info, p)) {
    best.split = {clusters, 1};
  }
  return best;
}

}  // namespace

// Those of the largest part of each architecture: A100 108, H100 and H200 SXM 132. Only ratios matter.
int64_t planned_multiprocessors(int sm) { return sm < 90 ? 108 : 132; }

KSplit k_split(const KernelInfo& info, const Problem& p) {
  return info.bits == 0 ? plan(info, p).split : mixed_k_split(info, p);
}

int rung(const Kernel& kernel, const Problem& p) {
  const KernelInfo& info = kernel.info;
  const auto all = kernels();
  const bool rival = calibrated(info) || at_once_pays(info, p);
  const auto first = std::find_if(all.begin(), all.end(), [&](const Kernel* other) {
    return rival ? calibrated(other->info) : other->info.family == info.family;
  });
  const auto place = static_cast<int>(first - all.begin()), places = static_cast<int>(all.size());
  const bool single = p.M == 1 || p.N == 1;
  // For a column, others bring as many of rhs as a tile has: of 13 that were measured none was as fast.
  if (by_vector(info) && p.N == 1 && p.M > 1) return places;
  const bool in_the_way = by_vector(info) ? !single && !several_rows_pay(p) : recomputes_all(info, p);
  return in_the_way ? place - places : place;
}

double estimated_cost(const Kernel& kernel, const Problem& p) {
  if (kernel.info.bits != 0) return estimated_mixed_cost(kernel, p);
  const double cost = plan(kernel.info, p).cost_us;
  if (kernel.copies == nullptr) return cost;
  const Copies copies = kernel.copies(p);
  return cost + copies.operands * kCopyUs + static_cast<double>(copies.bytes) / kCopiedBytesPerUs;
}

const Kernel* select(const Problem& p, std::string_view family) {
  if (p.codes.bits != 0) return select_mixed(p, family);
  const Kernel* best = nullptr;
  for (const Kernel* kernel : kernels()) {
    if (!family.empty() && kernel->info.family != family) continue;
    if (!why_not(*kernel, p).empty()) continue;
    const int place = rung(*kernel, p), best_place = best == nullptr ? place - 1 : rung(*best, p);
    const bool cheaper = place == best_place && estimated_cost(*kernel, p) <= estimated_cost(*best, p);
    if (place > best_place || cheaper) best = kernel;
  }
  return best;
}

}  // namespace jaxgemm
