// The K loop of sm90_tma_wgmma.cuh for rhs that lies along N, of elements that wgmma reads from shared memory only
// along K. But its A may come from registers, which threads can fill in any order: A is rhs, its rows columns of out, B
// is lhs, and the sums are those of out transposed. CUTLASS does the same, see "sm90_mma_tma_gmma_rs_warpspecialized".
#pragma once

#include "mainloop/sm90_tma_wgmma.cuh"
#include "ptx/ldmatrix.cuh"

namespace jaxgemm::sm90 {

// Of four neighbouring columns of out, the row and the first column.
struct QuadPlace {
  int row, col;
};

// How A's fragments are read, by the size of an element, and which elements of out a thread's sums then are:
//   load(fragment, s_rhs, first_col, step)   of a step of wgmma along K, for all blocks of 64 columns
//   quads(out, sums, i)                      of the kQuadRegisters registers of each block from i on, as many quads as
//                                            there are blocks
//   place(j)                                 of the j-th of those from register 0 on; columns count from first_col
template <class Element, int kBoxBytes>
struct RhsFragments;

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

// Elements of 32 bits: pairs of neighbours along N.
template <int kBoxBytes>
struct RhsFragments<float, kBoxBytes> {
  static constexpr int kQuadRegisters = 4, kColsOfWarp = kRowBytes / sizeof(float);
  static constexpr int kBlocks = 2;  // so that a warp reads whole rows of shared memory

  __device__ static void load(uint32_t (&fragment)[kBlocks][4], const char* s_rhs, int first_col, int step) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    const char* s_box = s_rhs + (first_col / kColsOfWarp + thread / 32) * kBoxBytes;
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

  // Of the sums i and i + 2, which belong to the two rows of A, of both blocks; and of the next ones.
  template <int kRegisters>
  __device__ static void quads(float4 (&out)[kBlocks], const float (&sums)[kBlocks][kRegisters], int i) {
    const bool swapped = pairs_swapped(static_cast<int>(threadIdx.x) % 32);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const float2 pairs[kBlocks] = {{sums[0][i + j], sums[0][i + j + 2]}, {sums[1][i + j], sums[1][i + j + 2]}};
      const float2 low = swapped ? pairs[1] : pairs[0], high = swapped ? pairs[0] : pairs[1];
      out[j] = {low.x, low.y, high.x, high.y};
    }
  }

  __device__ static QuadPlace place(int j) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    return {ptx::accumulator_element(lane, j).col, thread / 32 * kColsOfWarp + quad_of(lane) * 4};
  }
};

// Elements of a byte, of which a register of A holds four along K: ldmatrix reads 16 columns of 8 rows, two of each to
// a lane, transposed, and bytes of two registers make up two of A. The rows that one matrix has, of 16 along K, lie in
// different banks: for lanes of the lower half of a group 4 c and the next, for the others 4 c + 2 and the next.
template <class Element, int kBoxBytes>
  requires(sizeof(Element) == 1)
struct RhsFragments<Element, kBoxBytes> {
  static constexpr int kQuadRegisters = 4, kColsOfWarp = 16, kMatrixK = 16;

  template <int kBlocks>
  __device__ static void load(uint32_t (&fragment)[kBlocks][4], const char* s_rhs, int first_col, int step) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    const int matrix = lane / 8, group = lane % 8 / 2;  // of the row whose address this lane gives
    const int k =
        step * ptx::kWgmmaK<Element> + matrix / 2 * kMatrixK + group * 4 + (matrix % 2 == group / 2 ? 0 : 2) + lane % 2;
    const bool second_first = lane % 4 >= 2;  // what this lane gets of the first matrix lies behind that of the second
    const uint32_t even = second_first ? 0x2064 : 0x6420, odd = second_first ? 0x3175 : 0x7531;
    const char* s_box = s_rhs + first_col / kRowBytes * kBoxBytes;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int at = k * kRowBytes + first_col % kRowBytes + (block * 4 + thread / 32) * kColsOfWarp;
      uint32_t pairs[4];
      ptx::ldmatrix<true>(pairs, s_box + ptx::swizzled(kSwizzle, static_cast<uint32_t>(at)));
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        fragment[block][i] = __byte_perm(pairs[i], pairs[i + 1], even);
        fragment[block][i + 1] = __byte_perm(pairs[i], pairs[i + 1], odd);
      }
    }
    ptx::pin_registers(fragment);  // else ptxas makes them later, and lets each wgmma wait for the one before it
  }

  // A lane has two neighbouring columns of two rows, and so has the one beside it: each takes a row of both.
  template <class Sum, int kRegisters>
  __device__ static auto quad(const Sum (&d)[kRegisters], int i) {
    using Quad = typename VectorsOf<Sum>::Quad;
    constexpr unsigned kAllLanes = 0xffffffff;
    const bool second = takes_second_row();
    const Sum low = __shfl_xor_sync(kAllLanes, second ? d[i] : d[i + 1], kNeighbour),
              high = __shfl_xor_sync(kAllLanes, second ? d[i + 2] : d[i + 3], kNeighbour);
    return second ? Quad{low, high, d[i + 1], d[i + 3]} : Quad{d[i], d[i + 2], low, high};
  }

  // The first of the two, of a block's sums.
  __device__ static int col_of_sums(int block) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    return (block * 4 + thread / 32) * kColsOfWarp + thread % 32 / kNeighbour * 2;
  }

  template <class Quad, class Sum, int kBlocks, int kRegisters>
  __device__ static void quads(Quad (&out)[kBlocks], const Sum (&sums)[kBlocks][kRegisters], int i) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) out[block] = quad(sums[block], i);
  }

  __device__ static QuadPlace place(int block) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    return {ptx::accumulator_element(lane, 0).col + static_cast<int>(takes_second_row()),
            (block * 4 + thread / 32) * kColsOfWarp + lane / (2 * kNeighbour) * 4};
  }

 private:
  static constexpr int kNeighbour = 4;  // lanes further
  __device__ static bool takes_second_row() { return (threadIdx.x & kNeighbour) != 0; }
};

template <class Config, class Op>
struct RhsInRegisters : Mainloop<Config, Op, false, false> {
  using Base = Mainloop<Config, Op, false, false>;
  using typename Base::Lhs, typename Base::Rhs, typename Base::StageRing, typename Base::Stage;
  using Fragments = RhsFragments<typename Op::Rhs, Rhs::kBoxBytes>;
  static constexpr bool kTransposesSums = true;
  static constexpr bool kWritesPlain = sizeof(typename Op::Rhs) == 4;  // as Way::kPlain, a kernel of its own
  static constexpr int kReleases = kWarpgroup / 32;                    // its warps read on their own
  static constexpr int kBlocks = Config::kCtaTile.n / Config::kConsumers / ptx::kWgmmaM;
  static constexpr int kSteps = kRowBytes / ptx::kWgmmaStepBytes;
  static constexpr int kRegisters = Config::kCtaTile.m / 2;  // of a block
  using Sum = typename Op::Sum;
  using Sums = Sum[kBlocks][kRegisters];
  using Quad = typename VectorsOf<Sum>::Quad;
  static_assert(Op::kPlanes == 1 && !Config::kPingPong && Base::kTilesOfStep == 1 && Config::kRhsInRegisters);

  // Steps whose wgmmas may be in flight when the next one's are issued, and fragments of A: theirs, and one that is
  // read meanwhile. (With three in flight ptxas lets each wgmma wait for the one before it.)
  static constexpr int kInFlight = 2, kFragments = 4;
  static_assert(kFragments >= kInFlight + 2 && kSteps % kFragments == 0);

  // sums = (lhs * the columns of rhs from first_col on) transposed.
  template <class AllIssued>
  __device__ static void multiply(Sums& sums, Pipeline<Config>& s_pipeline, StageRing& ring, int first_col, int k_tiles,
                                  AllIssued&& all_issued) {
    clear(sums);
    if constexpr (Op::kKTilesApart == 0) {
      walk(sums, s_pipeline, ring, first_col, k_tiles);
    } else {
#pragma unroll 1
      for (int i = 0; i < k_tiles; i += Op::kKTilesApart) {
        Sums new_sums;
        clear(new_sums);
        const int rest = k_tiles - i;
        walk(new_sums, s_pipeline, ring, first_col, rest < Op::kKTilesApart ? rest : Op::kKTilesApart);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
          for (int r = 0; r < kRegisters; ++r) sums[block][r] += new_sums[block][r];
        }
      }
    }
    all_issued();
  }

  // From the row of register 0 to register i.
  __device__ static int rows_further(int i) {
    return ptx::accumulator_element(0, i).col - ptx::accumulator_element(0, 0).col;
  }

  // Calls f(row, col, quad) for all that the thread has of the CTA's tile: row of out, first of four neighbouring
  // columns, their sums.
  template <class F>
  __device__ static void for_each_quad(const Sums& sums, int first_col, F&& f) {
#pragma unroll
    for (int i = 0; i < kRegisters; i += Fragments::kQuadRegisters) quads_of(sums, first_col, i, i, f);
  }

  // To the CTA's tile, row-major, of `stride` a multiple of four. The rows further down are at distances that the
  // compiler knows: else it would keep all their addresses in registers.
  __device__ static void store(const Sums& sums, int first_col, Sum* tile, int stride) {
    Sum* first[kBlocks];
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const QuadPlace place = Fragments::place(j);
      first[j] = tile + place.row * stride + first_col + place.col;
    }
#pragma unroll
    for (int i = 0; i < kRegisters; i += Fragments::kQuadRegisters) {
      Quad quads[kBlocks];
      Fragments::quads(quads, sums, i);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) *reinterpret_cast<Quad*>(first[j] + rows_further(i) * stride) = quads[j];
    }
  }

  // As for_each_quad(), but in a loop, for long code: the sums take turns in the first registers, first those of a
  // group among themselves, then the groups.
  template <class F>
  __device__ static void for_each_quad_in_turn(Sums& sums, int first_col, F&& f) {
    constexpr int kGroup = kRegisters < 32 ? kRegisters : 32;
#pragma unroll 1
    for (int i = 0; i < kRegisters; i += kGroup) {
#pragma unroll 1
      for (int j = 0; j < kGroup; j += Fragments::kQuadRegisters) {
        quads_of(sums, first_col, 0, i + j, f);
        move_down<Fragments::kQuadRegisters, kGroup>(sums);
      }
      move_down<kGroup, kRegisters>(sums);
    }
  }

 private:
  // Of each block's first kEnd registers, all from kBy on.
  template <int kBy, int kEnd>
  __device__ static void move_down(Sums& sums) {
#pragma unroll
    for (auto& block : sums) {
#pragma unroll
      for (int i = kBy; i < kEnd; ++i) block[i - kBy] = block[i];
    }
  }

  // Of the registers from `held` on, whose sums are those from i on.
  template <class F>
  __device__ static void quads_of(const Sums& sums, int first_col, int held, int i, F&& f) {
    Quad quads[kBlocks];
    Fragments::quads(quads, sums, held);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const QuadPlace place = Fragments::place(j);
      f(place.row + rows_further(i), first_col + place.col, quads[j]);
    }
  }

  // Adds the products of the next k-tiles. The wgmmas of kInFlight steps are in flight while the fragments of the next
  // one are read.
  __device__ static void walk(Sums& sums, Pipeline<Config>& s_pipeline, StageRing& ring, int first_col, int k_tiles) {
    uint32_t fragments[kFragments][kBlocks][4];
    int previous = 0;  // stage
    if (k_tiles > 0) {
      ptx::mbarrier_wait(s_pipeline.full[ring.stage], ring.parity);
      Fragments::load(fragments[0], s_pipeline.stages[ring.stage].rhs, first_col, 0);
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
          ptx::wgmma<typename Op::Rhs, typename Op::Lhs, Config::kCtaTile.m, ptx::Major::kK>(
              sums[block], fragments[step % kFragments][block], ptx::advance(lhs, step * Lhs::kStepBytes), 1);
        }
        ptx::wgmma_commit();
        if (step + 1 < kSteps) {
          Fragments::load(fragments[(step + 1) % kFragments], s_pipeline.stages[stage].rhs, first_col, step + 1);
        } else {
          ring.advance();
          if (i + 1 < k_tiles) {
            ptx::mbarrier_wait(s_pipeline.full[ring.stage], ring.parity);
            Fragments::load(fragments[0], s_pipeline.stages[ring.stage].rhs, first_col, 0);
          }
        }
        ptx::wgmma_wait<kInFlight>();
        if (step == kInFlight - 1 && i > 0) release(s_pipeline, previous);
      }
      previous = stage;
    }
    ptx::wgmma_wait<0>();
    if (k_tiles > 0) release(s_pipeline, previous);
    ptx::pin_registers(sums);
  }

  // The executing warp has read the stage.
  __device__ static void release(Pipeline<Config>& s_pipeline, int stage) {
    __syncwarp();
    s_pipeline.release_by_warp(stage);
  }
};

}  // namespace jaxgemm::sm90
