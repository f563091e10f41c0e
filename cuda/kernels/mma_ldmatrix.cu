// mma_ldmatrix: operand tiles in shared memory, from which ldmatrix loads whole fragments.
//
// What is new against mma: an element is fetched from global memory once per CTA tile, 16 bytes at a time, and not once
// by every warp that needs it; and what lanes hold no longer has to suit the loads. ldmatrix takes a row of 16 bytes
// from each of eight lanes and deals them out as mma.sync wants them, four 8 x 8 matrices with one instruction, turned
// around on the way if the operand lies the other way. The rows that it reads together would lie in the same banks:
// their vectors are permuted (OperandTile). Rows that do not begin at multiples of 16 bytes are copied as the vectors
// that hold them, and moved within shared memory (tile/shifted_tile.cuh).
//
// Copies and multiply-adds still take turns. What covers the wait is the other CTA on the multiprocessor.
//
// Source: PTX ISA, "Warp Level Matrix Load Instruction: ldmatrix"; the walk-through of mma.m16n8k16, "with ldmatrix".
#include "launch.cuh"
#include "mainloop/sm80_cp_async.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/shared_storage.cuh"
#include "tile/global_matrix.cuh"
#include "tile/mma_family.cuh"
#include "tile/padding.h"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

// A k-tile is 128 bytes of K, such that its runs along K fill all banks once. CTAS is how many CTAs are to fit a
// multiprocessor.
template <int ELEMENT_BYTES, int CTA_M, int CTA_N, int WARP_M, int WARP_N, int CTAS>
struct TileConfig {
  static constexpr std::string_view kFamily = "mma_ldmatrix";
  static constexpr auto kDTypes = kMmaDTypes<ELEMENT_BYTES>;
  static constexpr bool kTf32 = ELEMENT_BYTES == 4;
  static constexpr int kRunBytes = 128, kElementBytes = ELEMENT_BYTES;
  static constexpr Tile kCtaTile = {CTA_M, CTA_N, kRunBytes / ELEMENT_BYTES}, kWarpTile = {WARP_M, WARP_N, kCtaTile.k};
  static constexpr int kStages = 1, kThreads = CTA_M / WARP_M * (CTA_N / WARP_N) * 32, kCtas = CTAS;

  struct KTiles {
    alignas(128) char lhs[CTA_M * kRunBytes], rhs[CTA_N * kRunBytes];
    // Of operands whose runs begin anywhere, as they are copied.
    alignas(128) char copied_lhs[kShiftedBytes<CTA_M * kRunBytes, CTA_M, kCtaTile.k>];
    alignas(128) char copied_rhs[kShiftedBytes<CTA_N * kRunBytes, CTA_N, kCtaTile.k>];
  };
  union SharedStorage {
    KTiles tiles;
    StagedSums<CTA_M, CTA_N> sums;  // when the K loop is over
  };
};

struct Config64x64x64 : TileConfig<2, 64, 64, 32, 32, 4> {};
struct Config128x128x64 : TileConfig<2, 128, 128, 64, 64, 2> {};
struct Config64x64x32 : TileConfig<4, 64, 64, 32, 32, 3> {};
struct Config128x64x32 : TileConfig<4, 128, 64, 64, 32, 2> {};
struct Config64x64x128 : TileConfig<1, 64, 64, 32, 32, 4> {};
struct Config128x128x128 : TileConfig<1, 128, 128, 64, 64, 2> {};

// CTAs side by side, which bound a thread's registers. Of float32 one more: there ptxas takes a few registers too many
// for it if it may.
template <class Config, class Op>
constexpr int kCtas = Config::kCtas + (Config::kElementBytes == 4 && !Op::kSumsApart ? 1 : 0);

template <class Config, class Op, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads, kCtas<Config, Op>)
    mma_ldmatrix_kernel(GlobalMatrix<typename Op::Element, kLhsTransposed> g_lhs,
                        GlobalMatrix<typename Op::Element, kRhsTransposed> g_rhs, bool lhs_aligned, bool rhs_aligned,
                        Epilogue epilogue, FixOf<Op> fix, TileGrid grid, int64_t M, int64_t N, int64_t K) {
  using Loop = sm80::Mainloop<Config, Op, kLhsTransposed, kRhsTransposed>;
  constexpr Tile kCta = Config::kCtaTile;
  auto& smem = shared_storage<typename Config::SharedStorage>();
  auto& tiles = smem.tiles;

  const TileCoord tile = grid.tile(blockIdx.x);
  typename Loop::LhsShifted lhs(g_lhs.at(tile.batch, tile.row, 0), g_lhs.data, g_lhs.ld, M - tile.row, lhs_aligned);
  typename Loop::RhsShifted rhs(g_rhs.at(tile.batch, 0, tile.col), g_rhs.data, g_rhs.ld, N - tile.col, rhs_aligned);
  const typename Loop::LhsLoader lhs_loader(Loop::warp_row());
  const typename Loop::RhsLoader rhs_loader(Loop::warp_col());

  typename Loop::Accumulators accumulators = {};
  for (int64_t k = 0; k < K; k += kCta.k) {
    const int k_left = K - k < kCta.k ? static_cast<int>(K - k) : kCta.k;
    lhs.copy(lhs_aligned ? tiles.lhs : tiles.copied_lhs, k_left);
    rhs.copy(rhs_aligned ? tiles.rhs : tiles.copied_rhs, k_left);
    ptx::cp_async_wait_all();
    __syncthreads();  // the k-tile is complete
    if (!lhs_aligned || !rhs_aligned) {
      if (!lhs_aligned) lhs.move(tiles.lhs, tiles.copied_lhs);
      if (!rhs_aligned) rhs.move(tiles.rhs, tiles.copied_rhs);
      __syncthreads();  // and lies where fragments are loaded from
    }
    accumulate<Op>(accumulators, [&](typename Loop::Accumulators& sums) {
#pragma unroll
      for (int step = 0; step < Loop::kSteps; ++step) {
        typename Loop::Fragments fragments;
        fragments.load(tiles, lhs_loader, rhs_loader, step);
        multiply<Op>(sums, fragments.lhs, fragments.rhs);
      }
    });
    __syncthreads();  // nobody reads it any more
  }

  auto& s_out = smem.sums.of(typename Op::Accumulator{});
  const RowPhases phases(epilogue, tile);
  s_out.template store<Loop::LhsLoader::kGroup, Loop::RhsLoader::kGroup>(accumulators, Loop::warp_row(),
                                                                         Loop::warp_col(), phases);
  __syncthreads();
  write_tile<Op, Config::kThreads>(s_out, phases, epilogue, fix, tile, M, N);
}

template <class Config>
int64_t workspace_bytes(const Problem& p) {
  return vector_padding(p, Config::kCtaTile).workspace_bytes(p);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  const Problem& p = args.problem;
  PaddableOperand lhs = {args.lhs, p.lhs}, rhs = {args.rhs, p.rhs};
  char* workspace = static_cast<char*>(args.workspace);
  std::string error = vector_padding(p, Config::kCtaTile).apply(lhs, rhs, workspace, args);
  if (!error.empty()) return error;

  const bool lhs_aligned = lhs.aligned(p.lhs_dtype), rhs_aligned = rhs.aligned(p.rhs_dtype);
  const TileGrid grid(Config::kCtaTile, p.M, p.N);
  return dispatch_op<Config::kElementBytes>(p, [&]<class Op>() {
    return dispatch_layout(p.layout(), [&]<bool kLhsTransposed, bool kRhsTransposed>() {
      return launch_kernel(mma_ldmatrix_kernel<Config, Op, kLhsTransposed, kRhsTransposed>, grid.ctas(p.batch),
                           Config::kThreads, describe<Config>().smem_bytes, args.stream,
                           GlobalMatrix<typename Op::Element, kLhsTransposed>(lhs.data, lhs.view),
                           GlobalMatrix<typename Op::Element, kRhsTransposed>(rhs.data, rhs.view), lhs_aligned,
                           rhs_aligned, Epilogue(args), FixOf<Op>(args), grid, p.M, p.N, p.K);
    });
  });
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes<Config>};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(mma_ldmatrix, &kKernel<Config64x64x64>, &kKernel<Config128x128x64>, &kKernel<Config64x64x32>,
               &kKernel<Config128x64x32>, &kKernel<Config64x64x128>, &kKernel<Config128x128x128>)
