// The tile of one operand in shared memory: where its elements lie, how cp.async brings them there from global memory,
// and how a warp loads the fragments of mma.sync from there.
//
// A tile is kept in the order that the matrix has in global memory: as runs of neighbouring elements, along M or N
// ("MN") or along K. Runs are made of 16-byte vectors, whose places within 128 bytes (all 32 banks) are permuted by
// XOR with a number that depends on the run, the phase, such that what a warp loads together lies in different banks.
#pragma once

#include <cstdint>

#include "global_matrix.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "tile/alignment.h"

namespace jaxgemm {

template <class Element, int kMn, int kK, bool kMnContiguous>
struct OperandTile {
  static constexpr int kVectorElems = kVectorBytes / sizeof(Element);
  static constexpr int kRuns = kMnContiguous ? kK : kMn, kRunElems = kMnContiguous ? kMn : kK;
  static constexpr int kRunBytes = kRunElems * static_cast<int>(sizeof(Element));
  static constexpr int kVectorsPerRun = kRunElems / kVectorElems;
  static constexpr int kBytes = kRuns * kRunBytes;
  static_assert(
      kRunBytes % 128 == 0 || (kMnContiguous && sizeof(Element) == 1 && kRunBytes == 64),
      "a phase permutes the vectors within 128 bytes, or within each of the two runs of int8 that share them");

  // Runs that a warp reads together have different phases: those of one ldmatrix (eight runs, one vector of each), or,
  // for float32 along MN, four runs of which it takes two vectors each.
  __host__ __device__ static constexpr int phase(int run) {
    if constexpr (!kMnContiguous || sizeof(Element) == 2) {
      return run % 8;
    } else if constexpr (sizeof(Element) == 4) {
      return run % 4 * 2;
    } else {  // the rows of load_bytes_along_mn()
      return kRunBytes == 64 ? run / 4 % 4 : (run / 4 * 2 + run % 2) % 8;
    }
  }

  // Where a vector lies, in bytes.
  __host__ __device__ static constexpr int offset(int run, int vector) {
    return run * kRunBytes + (vector ^ phase(run)) * kVectorBytes;
  }
};

// One thread's share in copying the tiles of one operand, one after the other along K, each into another s_tile. Of a
// tile k_left elements along K exist (none if it is negative); the rest is zeros. The copies are part of the thread's
// current cp.async group. All runs are aligned; for those that are not see shifted_tile.cuh.
template <class Tile, class Element, bool kMnContiguous, int kThreads>
class OperandCopy {
 public:
  // From g_tile on, the first element of the first tile, there are mn_left elements along MN. `ld` in elements.
  __device__ OperandCopy(const Element* g_tile, int64_t ld, int64_t mn_left)
      : run_(static_cast<int>(threadIdx.x) / Tile::kVectorsPerRun),
        vector_(static_cast<int>(threadIdx.x) % Tile::kVectorsPerRun),
        mn_left_((mn_left < kMn ? static_cast<int>(mn_left) : kMn) -
                 (kMnContiguous ? vector_ * Tile::kVectorElems : run_)),
        step_(kRunsPerStep * ld),
        g_vector_(g_tile + run_ * ld + vector_ * Tile::kVectorElems) {}

  // Part kPart of kParts, which follow one another, of a copy of the next tile.
  template <int kPart = 0, int kParts = 1>
  __device__ void copy(char* s_tile, int k_left) {
    const int valid = valid_elems(k_left) * kElementBytes;
    char* s_vector = s_tile + Tile::offset(run_, vector_);
#pragma unroll
    for (int i = kSteps * kPart / kParts; i < kSteps * (kPart + 1) / kParts; ++i) {
      ptx::cp_async_16(s_vector + i * kStepBytes, g_vector_, inside(i, k_left) ? valid : 0);
      g_vector_ += step_;
    }
    if (kPart + 1 == kParts) next_tile();
  }

 private:
  static constexpr int kElementBytes = sizeof(Element);
  static constexpr int kMn = kMnContiguous ? Tile::kRunElems : Tile::kRuns;
  static constexpr int kRunsPerStep = kThreads / Tile::kVectorsPerRun;  // runs that all threads together copy at a time
  static constexpr int kSteps = Tile::kRuns / kRunsPerStep, kStepBytes = kRunsPerStep * Tile::kRunBytes;
  static_assert(kRunsPerStep * Tile::kVectorsPerRun == kThreads && kSteps * kRunsPerStep == Tile::kRuns);
  static_assert(Tile::phase(kRunsPerStep) == Tile::phase(0), "all vectors of a thread have one phase");

  // How many elements of this thread's vectors exist, in runs that do.
  __device__ int valid_elems(int k_left) const {
    const int left = kMnContiguous ? mn_left_ : k_left - vector_ * Tile::kVectorElems;
    return left < 0 ? 0 : left < Tile::kVectorElems ? left : Tile::kVectorElems;
  }

  __device__ bool inside(int i, int k_left) const {
    return i * kRunsPerStep < (kMnContiguous ? k_left - run_ : mn_left_);
  }

  // From behind the last run of a tile to the first of the next, which along MN is there already.
  __device__ void next_tile() {
    if constexpr (!kMnContiguous) g_vector_ += Tile::kRunElems - kSteps * step_;
  }

  int run_, vector_;
  int mn_left_;
  int64_t step_;
  const Element* g_vector_;  // this thread's next
};

// Loads fragments of mma.sync from a tile. A fragment is 16 elements of MN x kStepK = 32 bytes of K: a of lhs, or two
// neighbouring b of rhs.
template <class Tile, class Element, bool kMnContiguous, bool kIsLhs>
class FragmentLoader {
 public:
  // How rows (columns) are dealt to the lanes (fragment::dealt): int8 along MN comes in pairs (load_bytes_along_mn).
  static constexpr int kGroup = kMnContiguous && sizeof(Element) == 1 ? 2 : 1;

  // Fragments begin at mn + multiples of 16, and at first_step and the steps after it.
  __device__ explicit FragmentLoader(int mn, int first_step = 0) {
    const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, row = lane % 8;
    if constexpr (!kMnContiguous) {
      const int mn_half = kIsLhs ? matrix % 2 : matrix / 2, k_half = kIsLhs ? matrix / 2 : matrix % 2;
      lane_offset_ = Tile::offset(mn + mn_half * 8 + row, 2 * first_step + k_half);
    } else if constexpr (sizeof(Element) == 2) {
      const int mn_half = kIsLhs ? matrix % 2 : matrix / 2, k_half = kIsLhs ? matrix / 2 : matrix % 2;
      lane_offset_ = Tile::offset(first_step * 16 + k_half * 8 + row, mn / Tile::kVectorElems + mn_half);
    } else if constexpr (sizeof(Element) == 4) {
      lane_offset_ =
          Tile::offset(first_step * 8 + lane % 4, mn / Tile::kVectorElems + lane / 16) + lane / 4 % 4 * kElementBytes;
    } else {
      lane_offset_ = Tile::offset(first_step * 32 + matrix / 2 * 16 + row / 2 * 4 + matrix % 2 * 2 + row % 2,
                                  mn / Tile::kVectorElems);
    }
  }

  // Fragment i along MN, step k_step along K; r as ptx::mma wants it: a[0..3], or b[0..1] of the first 8 columns and
  // b[0..1] of the second 8.
  __device__ void load(uint32_t (&r)[4], const char* s_tile, int i, int k_step) const {
    if constexpr (!kMnContiguous) {
      ptx::ldmatrix<false>(r, s_tile + at(i * 16, 2 * k_step));
    } else if constexpr (sizeof(Element) == 2) {
      ptx::ldmatrix<true>(r, s_tile + at(k_step * 16, 2 * i));
    } else if constexpr (sizeof(Element) == 4) {
      // a: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); of b the middle two change places.
#pragma unroll
      for (int mn_half = 0; mn_half < 2; ++mn_half) {
#pragma unroll
        for (int k_half = 0; k_half < 2; ++k_half) {
          const int at_half = at(k_step * 8 + k_half * 4, 4 * i + 2 * mn_half);
          r[kIsLhs ? mn_half + 2 * k_half : 2 * mn_half + k_half] =
              *reinterpret_cast<const uint32_t*>(s_tile + at_half);
        }
      }
    } else {
      load_bytes_along_mn(r, s_tile + at(k_step * 32, i));
    }
  }

 private:
  static constexpr int kElementBytes = sizeof(Element);

  // The lane's address moved by `runs`, a multiple of the phases' period, and by `vectors` such that no carry leaves
  // the bits that the lane has set: the XOR of the phase then commutes with the move.
  __device__ int at(int runs, int vectors) const {
    return (lane_offset_ ^ vectors % 8 * kVectorBytes) + runs * Tile::kRunBytes + vectors / 8 * 8 * kVectorBytes;
  }

  // ldmatrix can transpose pairs of bytes, not bytes. Four matrices of 8 runs x 16 bytes hold 32 of K x 16 of MN; the
  // transposed load gives a lane the bytes (mn 2g, 2g + 1) of two runs, and the runs are dealt to the matrices such
  // that those of matrices 0 and 1 are the lane's 4t, 4t + 1 and 4t + 2, 4t + 3, those of matrices 2 and 3 the same
  // plus 16. What is then sorted by byte is a fragment whose row (or column) g is mn 2g, and g + 8 is mn 2g + 1.
  __device__ static void load_bytes_along_mn(uint32_t (&r)[4], const char* s_row) {
    uint32_t pairs[4];
    ptx::ldmatrix<true>(pairs, s_row);
#pragma unroll
    for (int k_half = 0; k_half < 2; ++k_half) {
      const uint32_t even = __byte_perm(pairs[2 * k_half], pairs[2 * k_half + 1], 0x6420);
      const uint32_t odd = __byte_perm(pairs[2 * k_half], pairs[2 * k_half + 1], 0x7531);
      r[kIsLhs ? 2 * k_half : k_half] = even;
      r[kIsLhs ? 2 * k_half + 1 : 2 + k_half] = odd;
    }
  }

  int lane_offset_;
};

}  // namespace jaxgemm
