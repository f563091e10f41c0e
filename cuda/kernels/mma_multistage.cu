// mma_multistage: the loads of the next k-tiles run while the tensor cores work on this one.
//
// What is new against mma_ldmatrix: nobody waits for global memory. cp.async copies k-tiles straight into a ring of
// three to five stages of shared memory, kStages - 1 k-tiles ahead (mainloop/sm80_cp_async.cuh), and the fragments of
// the next step along K are loaded while the current ones are multiplied. Where out has too few tiles to fill the GPU,
// K is split over several CTAs, whose partial sums a second kernel adds up in a fixed order (tile/split_k.h).
//
// Rows that do not begin at multiples of 16 bytes are copied as the vectors that hold them, and moved within shared
// memory (tile/shifted_tile.cuh); where there is much to multiply, they are first copied into the workspace (Padding).
//
// Source: the multi-stage GEMM on mma.sync that tutorials for Ampere build up to (KnowingNothing/MatmulTutorial,
// "sm80"); CUTLASS, "Efficient GEMM in CUDA", sections "Pipelining" and "Parallelized Reductions".
#include "launch.cuh"
#include "mainloop/sm80_cp_async.cuh"
#include "ptx/shared_storage.cuh"
#include "tile/global_matrix.cuh"
#include "tile/mma_family.cuh"
#include "tile/padding.h"
#include "tile/scheduler.cuh"
#include "tile/split_k.h"

namespace jaxgemm {
namespace {

// A k-tile is 128 bytes of K, such that its runs along K fill all banks once. CTAS is how many CTAs are to fit a
// multiprocessor: what registers and stages are budgeted for. WARPS_K warps share a warp tile: each takes its part of
// every k-tile, and their sums are added in shared memory. A CTA that has the multiprocessor to itself so gets the
// eight warps that it takes to hide latency, with warp tiles large enough for the bandwidth of shared memory.
// SHIFTED_AHEAD is how many k-tiles are on their way where runs begin anywhere: at most three, as many as leave room
// for CTAS and fit every GPU that the stages fit; for 128 x 256 two, though three would fit, as it was measured with
// two.
template <int ELEMENT_BYTES, int CTA_M, int CTA_N, int WARP_M, int WARP_N, int STAGES, int SHIFTED_AHEAD, int CTAS,
          int WARPS_K = 1>
struct TileConfig {
  static constexpr std::string_view kFamily = "mma_multistage";
  static constexpr auto kDTypes = kMmaDTypes<ELEMENT_BYTES>;
  static constexpr bool kTf32 = ELEMENT_BYTES == 4, kSplitK = true;
  static constexpr int kRunBytes = 128, kElementBytes = ELEMENT_BYTES;
  static constexpr Tile kCtaTile = {CTA_M, CTA_N, kRunBytes / ELEMENT_BYTES}, kWarpTile = {WARP_M, WARP_N, kCtaTile.k};
  static constexpr int kStages = STAGES, kCtas = CTAS;
  static constexpr int kThreads = CTA_M / WARP_M * (CTA_N / WARP_N) * WARPS_K * kWarpSize;

  struct Stage {
    alignas(128) char lhs[CTA_M * kRunBytes], rhs[CTA_N * kRunBytes];
  };
  // Of operands whose runs begin anywhere.
  struct Copied {
    alignas(128) char lhs[kShiftedBytes<CTA_M * kRunBytes, CTA_M, kCtaTile.k>];
    alignas(128) char rhs[kShiftedBytes<CTA_N * kRunBytes, CTA_N, kCtaTile.k>];
  };
  static constexpr int kShiftedAhead = SHIFTED_AHEAD;
  struct Shifted {
    Stage tile;
    Copied copied[kShiftedAhead];
  };
  union SharedStorage {
    Stage stages[STAGES];
    Shifted shifted;
    StagedSums<CTA_M, CTA_N> sums;  // when the K loop is over
  };
};

struct Config64x64x64 : TileConfig<2, 64, 64, 32, 32, 4, 3, 3> {};
struct Config64x128x64 : TileConfig<2, 64, 128, 32, 64, 4, 2, 2> {};
struct Config128x128x64 : TileConfig<2, 128, 128, 64, 64, 5, 3, 1, 2> {};
struct Config128x256x64 : TileConfig<2, 128, 256, 64, 64, 4, 2, 1> {};
struct Config64x64x32 : TileConfig<4, 64, 64, 32, 32, 4, 3, 2> {};
struct Config128x128x32 : TileConfig<4, 128, 128, 64, 32, 3, 1, 1> {};
struct Config64x64x128 : TileConfig<1, 64, 64, 32, 32, 4, 2, 3> {};
struct Config128x256x128 : TileConfig<1, 128, 256, 64, 64, 4, 2, 1> {};

// kAligned: all runs of both operands begin at multiples of 16 bytes. If not, those of one of them may.
template <class Config, class Op, bool kAligned, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtas)
    mma_multistage_kernel(GlobalMatrix<typename Op::Element, kLhsTransposed> g_lhs,
                          GlobalMatrix<typename Op::Element, kRhsTransposed> g_rhs, bool lhs_aligned, bool rhs_aligned,
                          Epilogue epilogue, FixOf<Op> fix, void* partials, TileGrid grid, SplitK split, int64_t M,
                          int64_t N, int64_t K) {
  using Loop = sm80::Mainloop<Config, Op, kLhsTransposed, kRhsTransposed>;
  using Accumulator = typename Op::Accumulator;
  constexpr Tile kCta = Config::kCtaTile;
  auto& smem = shared_storage<typename Config::SharedStorage>();

  const auto [tile_index, k, depth, _] = split.unit(blockIdx.x, K);
  const TileCoord tile = grid.tile(tile_index);

  typename Loop::Accumulators accumulators = {};
  const typename Op::Element* g_lhs_tile = g_lhs.at(tile.batch, tile.row, k);
  const typename Op::Element* g_rhs_tile = g_rhs.at(tile.batch, k, tile.col);
  if constexpr (kAligned) {
    Loop::run(accumulators, smem.stages, {g_lhs_tile, g_lhs.ld, M - tile.row}, {g_rhs_tile, g_rhs.ld, N - tile.col},
              depth);
  } else {
    Loop::run_shifted(accumulators, smem.shifted, {g_lhs_tile, g_lhs.data, g_lhs.ld, M - tile.row, lhs_aligned},
                      {g_rhs_tile, g_rhs.data, g_rhs.ld, N - tile.col, rhs_aligned}, depth);
  }

  auto& s_out = smem.sums.of(Accumulator{});
  const RowPhases phases = partials == nullptr ? RowPhases(epilogue, tile) : RowPhases();
#pragma unroll
  for (int part = 0; part < Loop::kWarpsK; ++part) {
    if (Loop::warp_k() == part) {
      s_out.template store<Loop::LhsLoader::kGroup, Loop::RhsLoader::kGroup>(accumulators, Loop::warp_row(),
                                                                             Loop::warp_col(), phases, part > 0);
    }
    __syncthreads();
  }
  if (partials == nullptr) {
    // Found again, not kept in registers while the accumulators need them.
    write_tile<Op, Config::kThreads>(s_out, phases, epilogue, fix, grid.tile(tile_index), M, N);
  } else {
    Accumulator* g_partial = static_cast<Accumulator*>(partials) + static_cast<int64_t>(blockIdx.x) * kCta.m * kCta.n;
    s_out.template for_each_quad<Config::kThreads>([&]<class Quad>(int row, int col, const Quad& quad) {
      *reinterpret_cast<Quad*>(g_partial + row * kCta.n + col) = quad;
    });
  }
}

template <class Config>
Padding padding(const Problem& p) {
  return vector_padding_that_pays(p, Config::kCtaTile);
}

template <class Config>
Copies copies(const Problem& p) {
  return padding<Config>(p).copies(p);
}

template <class Config>
int64_t workspace_bytes(const Problem& p) {
  return copies<Config>(p).bytes + SplitK(describe<Config>(), p, Config::kCtaTile).workspace_bytes(Config::kCtaTile);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  const Problem& p = args.problem;
  PaddableOperand lhs = {args.lhs, p.lhs}, rhs = {args.rhs, p.rhs};
  char* workspace = static_cast<char*>(args.workspace);
  if (std::string error = padding<Config>(p).apply(lhs, rhs, workspace, args); !error.empty()) return error;
  const SplitK split(describe<Config>(), p, Config::kCtaTile);
  void* partials = split.splits == 1 ? nullptr : workspace;
  const bool lhs_aligned = lhs.aligned(p.lhs_dtype), rhs_aligned = rhs.aligned(p.rhs_dtype);

  return dispatch_op<Config::kElementBytes>(p, [&]<class Op>() {
    const auto launch_for = [&]<bool kAligned>() {
      return dispatch_layout(p.layout(), [&]<bool kLhsTransposed, bool kRhsTransposed>() {
        return launch_kernel(mma_multistage_kernel<Config, Op, kAligned, kLhsTransposed, kRhsTransposed>, split.units(),
                             Config::kThreads, describe<Config>().smem_bytes, args.stream,
                             GlobalMatrix<typename Op::Element, kLhsTransposed>(lhs.data, lhs.view),
                             GlobalMatrix<typename Op::Element, kRhsTransposed>(rhs.data, rhs.view), lhs_aligned,
                             rhs_aligned, Epilogue(args), FixOf<Op>(args), partials,
                             TileGrid(Config::kCtaTile, p.M, p.N), split, p.M, p.N, p.K);
      });
    };
    std::string error =
        lhs_aligned && rhs_aligned ? launch_for.template operator()<true>() : launch_for.template operator()<false>();
    if (!error.empty() || partials == nullptr) return error;
    return reduce_partial_tiles(args, Config::kCtaTile, split, partials, Op::kRecomputes);
  });
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes<Config>, &copies<Config>};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(mma_multistage, &kKernel<Config64x64x64>, &kKernel<Config64x128x64>, &kKernel<Config128x128x64>,
               &kKernel<Config128x256x64>, &kKernel<Config64x64x32>, &kKernel<Config128x128x32>,
               &kKernel<Config64x64x128>, &kKernel<Config128x256x128>)
