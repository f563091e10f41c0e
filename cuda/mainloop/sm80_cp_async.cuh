// The K loop on cp.async: a ring of stages in shared memory, filled kStages - 1 k-tiles ahead, and registers that are
// loaded from it one step of mma.sync ahead.
#pragma once

#include <utility>

#include "ptx/cp_async.cuh"
#include "tile/mma_op.cuh"
#include "tile/operand_tile.cuh"
#include "tile/shifted_tile.cuh"

namespace jaxgemm::sm80 {

// What a warp multiplies and how, for one layout.
template <class Config, class Op, bool kLhsTransposed, bool kRhsTransposed>
struct Mainloop {
  using Element = typename Op::Element;
  using Accumulator = typename Op::Accumulator;
  static constexpr Tile kCta = Config::kCtaTile, kWarp = Config::kWarpTile;
  static constexpr int kWarpsN = kCta.n / kWarp.n, kWarpsMN = kCta.m / kWarp.m * kWarpsN;
  static constexpr int kWarpsK = Config::kThreads / kWarpSize / kWarpsMN;
  static constexpr bool kLhsAlongM = kLhsTransposed, kRhsAlongN = !kRhsTransposed;
  using LhsTile = OperandTile<Element, kCta.m, kCta.k, kLhsAlongM>;
  using RhsTile = OperandTile<Element, kCta.n, kCta.k, kRhsAlongN>;
  using LhsCopy = OperandCopy<LhsTile, Element, kLhsAlongM, Config::kThreads>;
  using RhsCopy = OperandCopy<RhsTile, Element, kRhsAlongN, Config::kThreads>;
  using LhsShifted = ShiftedCopy<LhsTile, Element, kLhsAlongM, Config::kThreads>;
  using RhsShifted = ShiftedCopy<RhsTile, Element, kRhsAlongN, Config::kThreads>;
  using LhsLoader = FragmentLoader<LhsTile, Element, kLhsAlongM, true>;
  using RhsLoader = FragmentLoader<RhsTile, Element, kRhsAlongN, false>;

  static constexpr int kSteps = kCta.k / kWarpsK / Op::kK;
  static constexpr int kFragmentsM = kWarp.m / fragment::kM, kFragmentsN = kWarp.n / fragment::kN;
  static_assert(kSteps * Op::kK * kWarpsK == kCta.k && kSteps % 2 == 0,
                "the fragments of a k-tile's first step are always the first");
  static_assert(kFragmentsM * fragment::kM == kWarp.m && kFragmentsN * fragment::kN == kWarp.n && kFragmentsN % 2 == 0);
  using Accumulators = Accumulator[kFragmentsM][kFragmentsN][4];

  // The first row and column of the executing warp's tile in the CTA tile, and its share of every k-tile: kSteps steps.
  __device__ static int warp_row() { return warp() % kWarpsMN / kWarpsN * kWarp.m; }
  __device__ static int warp_col() { return warp() % kWarpsN * kWarp.n; }
  __device__ static int warp_k() { return warp() / kWarpsMN; }

  using LhsFragments = uint32_t[kFragmentsM][4];
  using RhsFragments = uint32_t[kFragmentsN][2];

  __device__ static void load(RhsFragments& rhs, const char* s_rhs, const RhsLoader& loader, int step) {
#pragma unroll
    for (int j = 0; j < kFragmentsN; j += 2) {
      uint32_t pair[4];
      loader.load(pair, s_rhs, j / 2, step);
      rhs[j][0] = pair[0];
      rhs[j][1] = pair[1];
      rhs[j + 1][0] = pair[2];
      rhs[j + 1][1] = pair[3];
    }
  }

  // All fragments of one step.
  struct Fragments {
    LhsFragments lhs;
    RhsFragments rhs;

    template <class Stage>
    __device__ void load(const Stage& stage, const LhsLoader& lhs_loader, const RhsLoader& rhs_loader, int step) {
#pragma unroll
      for (int i = 0; i < kFragmentsM; ++i) lhs_loader.load(lhs[i], stage.lhs, i, step);
      Mainloop::load(rhs, stage.rhs, rhs_loader, step);
    }
  };

  // accumulators += lhs * rhs, over the K elements that exist. All runs of both operands begin at multiples of 16
  // bytes. When it ends no copies are under way, and no warp reads the stages any more.
  template <class Stage>
  __device__ static void run(Accumulators& accumulators, Stage (&stages)[Config::kStages], LhsCopy lhs_copy,
                             RhsCopy rhs_copy, int64_t K) {
    constexpr int kStages = Config::kStages;
    const LhsLoader lhs_loader(warp_row(), warp_k() * kSteps);
    const RhsLoader rhs_loader(warp_col(), warp_k() * kSteps);

    int tiles_left = static_cast<int>((K + kCta.k - 1) / kCta.k);  // of what has not been copied; negative past the end
    const int last_k = static_cast<int>(K - (tiles_left - 1) * static_cast<int64_t>(kCta.k));
    // Begins a part of the copy of the next k-tile: nothing is read past the end. After the last part the copies are a
    // group, so that groups can be counted.
    const auto copy_part = [&]<int kPart, int kParts>(Stage& stage) {
      const int k_here = tiles_left > 1 ? kCta.k : tiles_left == 1 ? last_k : 0;
      lhs_copy.template copy<kPart, kParts>(stage.lhs, k_here);
      rhs_copy.template copy<kPart, kParts>(stage.rhs, k_here);
      if (kPart + 1 < kParts) return;
      ptx::cp_async_commit();
      --tiles_left;
    };
    // Of the kStages - 1 groups that are on their way the first is complete, in all threads: its stage can be read, and
    // the stage before it can be overwritten.
    const auto wait = [] {
      ptx::cp_async_wait<kStages - 2>();
      __syncthreads();
    };

#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) copy_part.template operator()<0, 1>(stages[i]);
    wait();

    // Of rhs there are two sets, one multiplied and one loaded; a fragment of lhs is replaced as soon as it has been
    // multiplied by all of rhs.
    LhsFragments lhs;
    RhsFragments rhs[2];
    int stage = 0;
#pragma unroll
    for (int i = 0; i < kFragmentsM; ++i) lhs_loader.load(lhs[i], stages[stage].lhs, i, 0);
    load(rhs[0], stages[stage].rhs, rhs_loader, 0);
#pragma unroll 1
    while (tiles_left > 1 - kStages) {  // as many times as there are k-tiles
      // A step along K: copies, for later; fragments, for the next step; and the products.
      const auto step = [&]<int kStep>(Accumulators& sums) {
        copy_part.template operator()<kStep, kSteps>(stages[stage == 0 ? kStages - 1 : stage - 1]);
        if (kStep + 1 == kSteps) {
          wait();
          stage = stage + 1 == kStages ? 0 : stage + 1;
        }
        constexpr int kNext = (kStep + 1) % kSteps;
        load(rhs[kNext % 2], stages[stage].rhs, rhs_loader, kNext);
        const typename Op::template Columns<kFragmentsN> columns(rhs[kStep % 2]);
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i) {
          Op::multiply(sums[i], lhs[i], columns);
          lhs_loader.load(lhs[i], stages[stage].lhs, i, kNext);
        }
      };
      accumulate<Op>(accumulators, [&](Accumulators& sums) {
        [&]<int... kStep>(std::integer_sequence<int, kStep...>) {
          (step.template operator()<kStep>(sums), ...);
        }(std::make_integer_sequence<int, kSteps>());
      });
    }
    ptx::cp_async_wait_all();  // of zeros
    __syncthreads();
  }

  // The same where runs of an operand, or of both, begin anywhere. What was copied of them, k-tiles ahead, is moved to
  // where fragments are loaded from, and where it was the next k-tile is copied to. Of an operand that need not be
  // moved there is a k-tile more in turn, as it needs no such place.
  template <class Shifted>
  __device__ static void run_shifted(Accumulators& accumulators, Shifted& smem, LhsShifted lhs, RhsShifted rhs,
                                     int64_t K) {
    constexpr int kAhead = Config::kShiftedAhead;
    const LhsLoader lhs_loader(warp_row(), warp_k() * kSteps);
    const RhsLoader rhs_loader(warp_col(), warp_k() * kSteps);
    const auto lhs_in_turn = [&](int i) { return i == kAhead ? smem.tile.lhs : smem.copied[i].lhs; };
    const auto rhs_in_turn = [&](int i) { return i == kAhead ? smem.tile.rhs : smem.copied[i].rhs; };
    int copied = 0, in_turn = 0;  // to be copied to
    int64_t k_left = K;           // that has not been copied
#pragma unroll 1
    for (int64_t k = -kAhead * static_cast<int64_t>(kCta.k); k < K; k += kCta.k) {
      char* s_lhs = lhs.aligned() ? lhs_in_turn(in_turn) : smem.copied[copied].lhs;
      char* s_rhs = rhs.aligned() ? rhs_in_turn(in_turn) : smem.copied[copied].rhs;
      copied = copied + 1 == kAhead ? 0 : copied + 1;
      in_turn = in_turn == kAhead ? 0 : in_turn + 1;
      if (k >= 0) {
        ptx::cp_async_wait<kAhead - 1>();
        __syncthreads();  // the k-tile is there in all threads, and nobody reads the one before
        if (!lhs.aligned()) lhs.move(smem.tile.lhs, s_lhs);
        if (!rhs.aligned()) rhs.move(smem.tile.rhs, s_rhs);
        __syncthreads();
      }
      if (k_left > 0) {
        const int k_here = k_left < kCta.k ? static_cast<int>(k_left) : kCta.k;
        lhs.copy(s_lhs, k_here);
        rhs.copy(s_rhs, k_here);
        k_left -= kCta.k;
      }
      ptx::cp_async_commit();
      if (k < 0) continue;
      const struct {
        const char *lhs, *rhs;
      } tiles = {lhs.aligned() ? lhs_in_turn(in_turn) : smem.tile.lhs,
                 rhs.aligned() ? rhs_in_turn(in_turn) : smem.tile.rhs};
      accumulate<Op>(accumulators, [&](Accumulators& sums) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          Fragments fragments;
          fragments.load(tiles, lhs_loader, rhs_loader, step);
          multiply<Op>(sums, fragments.lhs, fragments.rhs);
        }
      });
    }
    __syncthreads();
  }

 private:
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }
};

}  // namespace jaxgemm::sm80
