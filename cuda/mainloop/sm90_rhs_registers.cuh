// The K loop of sm90_tma_wgmma.cuh for float32 whose rhs lies along N. wgmma reads elements of 32 bits from shared
// memory only along K, but its A may come from registers, which threads can fill in any order: A is rhs, its rows
// columns of out, B is lhs, and the sums are those of out transposed. CUTLASS does the same, see
// "sm90_mma_tma_gmma_rs_warpspecialized".
#pragma once

#include "mainloop/sm90_tma_wgmma.cuh"

namespace jaxgemm::sm90 {

// Which columns of out a lane's sums belong to: of its warp's 32, which are a row of shared memory, four neighbours,
// quad_of(lane). A pair of them is two rows of A in one block of wgmma, the other pair in the other block: the first
// one in block 0 unless pairs_swapped(lane). Lanes / 4 of one value read neighbouring rows of shared memory, 16 bytes
// of a row are where swizzling moves them: so the pairs that half a warp reads of one block lie in different banks, and
// so do the quads of eight lanes if they are stored in every second row of swizzled ones.
__device__ inline int quad_of(int lane) {
  const int group = lane / 4;
  return group / 2 ^ group % 2 * 5;
}
__device__ inline bool pairs_swapped(int lane) { return lane / 8 % 2 != 0; }

// Columns of out of a consumer: so many that each of its warps reads whole rows of shared memory.
inline constexpr int kRhsBlocks = 2, kRhsCols = kRhsBlocks * ptx::kWgmmaM;

template <class Config, class Op>
struct RhsInRegisters : Mainloop<Config, Op, false, false> {
  using Base = Mainloop<Config, Op, false, false>;
  using typename Base::Lhs, typename Base::Rhs, typename Base::StageRing, typename Base::Stage;
  static constexpr bool kTransposesSums = true;
  static constexpr int kReleases = kWarpgroup / 32;  // its warps read on their own
  static constexpr int kBlocks = kRhsBlocks, kColsOfWarp = kRowBytes / sizeof(float), kCols = kRhsCols;
  static constexpr int kSteps = kRowBytes / ptx::kWgmmaStepBytes;
  static constexpr int kRegisters = Config::kCtaTile.m / 2;  // of a block
  using Sums = float[kBlocks][kRegisters];
  static_assert(Op::kPlanes == 1 && Op::kKTilesApart == 0 && !Config::kPingPong && Base::kTilesOfStep == 1);
  static_assert(Config::kRhsInRegisters && kCols == kWarpgroup / 32 * kColsOfWarp);

  // Steps whose wgmmas may be in flight when the next one's are issued, and fragments of A: theirs, and one that is
  // read meanwhile. (With three in flight ptxas lets each wgmma wait for the one before it.)
  static constexpr int kInFlight = 2, kFragments = 4;
  static_assert(kFragments >= kInFlight + 2 && kSteps % kFragments == 0);

  // sums = (lhs * the columns of rhs from first_col on) transposed. The wgmmas of kInFlight steps are in flight while
  // the fragments of the next one are read.
  template <class AllIssued>
  __device__ static void multiply(Sums& sums, Pipeline<Config>& s_pipeline, StageRing& ring, int first_col, int k_tiles,
                                  AllIssued&& all_issued) {
    clear(sums);
    uint32_t fragments[kFragments][kBlocks][4];
    int previous = 0;  // stage
    if (k_tiles > 0) {
      ptx::mbarrier_wait(s_pipeline.full[ring.stage], ring.parity);
      load(fragments[0], s_pipeline.stages[ring.stage].rhs, first_col, 0);
    }
#pragma unroll 1
    for (int i = 0; i < k_tiles; ++i) {
      const int stage = ring.stage;
      const uint64_t lhs = Lhs::descriptor(s_pipeline.stages[stage].lhs, 0);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        ptx::wgmma_fence();
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          ptx::wgmma<float, float, Config::kCtaTile.m, ptx::Major::kK>(sums[block], fragments[step % kFragments][block],
                                                                       ptx::advance(lhs, step * Lhs::kStepBytes), 1);
        }
        ptx::wgmma_commit();
        if (step + 1 < kSteps) {
          load(fragments[(step + 1) % kFragments], s_pipeline.stages[stage].rhs, first_col, step + 1);
        } else {
          ring.advance();
          if (i + 1 < k_tiles) {
            ptx::mbarrier_wait(s_pipeline.full[ring.stage], ring.parity);
            load(fragments[0], s_pipeline.stages[ring.stage].rhs, first_col, 0);
          }
        }
        ptx::wgmma_wait<kInFlight>();
        if (step == kInFlight - 1 && i > 0) release(s_pipeline, previous);
      }
      previous = stage;
    }
    all_issued();
    ptx::wgmma_wait<0>();
    if (k_tiles > 0) release(s_pipeline, previous);
    ptx::pin_registers(sums);
  }

  // Calls f(row, col, quad) for all that the thread has of the CTA's tile: row of out, first of four neighbouring
  // columns, their sums.
  template <class F>
  __device__ static void for_each_quad(const Sums& sums, int first_col, F&& f) {
    const int col = first_col + first_col_of_thread();
#pragma unroll
    for (int i = 0; i < kRegisters; i = i % 2 == 0 ? i + 1 : i + 3) f(row_of(i), col, quad(sums, i));
  }

  // To the CTA's tile, row-major, of `stride` a multiple of four.
  __device__ static void store(const Sums& sums, int first_col, float* tile, int stride) {
    for_each_quad(sums, first_col, [&](int row, int col, const float4& quad) {
      *reinterpret_cast<float4*>(tile + row * stride + col) = quad;
    });
  }

  // As for_each_quad(), but in a loop, for long code: the sums take turns in the first registers.
  template <class F>
  __device__ static void for_each_quad_in_turn(Sums& sums, int first_col, F&& f) {
    const int col = first_col + first_col_of_thread();
#pragma unroll 1
    for (int i = 0; i < kRegisters; i += 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) f(row_of(i + j), col, quad(sums, j));
#pragma unroll
      for (auto& block : sums) {
#pragma unroll
        for (int j = 4; j < kRegisters; ++j) block[j - 4] = block[j];
      }
    }
  }

 private:
  __device__ static int first_col_of_thread() {
    return static_cast<int>(threadIdx.x) % kWarpgroup / 32 * kColsOfWarp +
           quad_of(static_cast<int>(threadIdx.x) % 32) * 4;
  }

  // Of the sums i and i + 2, which belong to the two rows of A, of both blocks.
  __device__ static int row_of(int i) { return ptx::accumulator_element(static_cast<int>(threadIdx.x) % 32, i).col; }
  __device__ static float4 quad(const Sums& sums, int i) {
    const bool swapped = pairs_swapped(static_cast<int>(threadIdx.x) % 32);
    const float2 pairs[kBlocks] = {{sums[0][i], sums[0][i + 2]}, {sums[1][i], sums[1][i + 2]}};
    const float2 low = swapped ? pairs[1] : pairs[0], high = swapped ? pairs[0] : pairs[1];
    return {low.x, low.y, high.x, high.y};
  }

  __device__ static void load(uint32_t (&fragment)[kBlocks][4], const char* s_rhs, int first_col, int step) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    const char* s_box = s_rhs + (first_col / kColsOfWarp + thread / 32) * Rhs::kBoxBytes;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int half = block ^ static_cast<int>(pairs_swapped(lane));
#pragma unroll
      for (int i = 0; i < 4; i += 2) {  // both rows of A, of one column
        const int k = step * ptx::kWgmmaK<float> + ptx::fragment_a_element(sizeof(float), lane, i, 0).col;
        const int at = k * kRowBytes + quad_of(lane) * ptx::kChunkBytes + half * static_cast<int>(sizeof(uint2));
        const uint2 pair = *reinterpret_cast<const uint2*>(s_box + ptx::swizzled(kSwizzle, static_cast<uint32_t>(at)));
        fragment[block][i] = pair.x;
        fragment[block][i + 1] = pair.y;
      }
    }
  }

  // The executing warp has read the stage.
  __device__ static void release(Pipeline<Config>& s_pipeline, int stage) {
    __syncwarp();
    s_pipeline.release_by_warp(stage);
  }
};

}  // namespace jaxgemm::sm90
