// An operand whose runs begin anywhere, and how it becomes an OperandTile all the same. cp.async copies the aligned
// vectors that hold a run, one more than the run has, into shared memory, k-tiles ahead; when they are there, each
// thread moves vectors of one run to their places in the tile, by as many bytes as that run begins past an aligned
// address. So nothing waits for single elements, and global memory is read in whole vectors.
//
// From k-tile to k-tile a run stays as far past an aligned address: the bytes between are a multiple of a vector, which
// the run's neighbours in the tile are not.
#pragma once

#include <cstdint>
#include <type_traits>

#include "operand_tile.cuh"
#include "ptx/cp_async.cuh"
#include "shifted_vector.cuh"

namespace jaxgemm {

// Bytes that hold a tile of kBytes as it is copied, with kMn elements along MN and kK along K, in either order.
template <int kBytes, int kMn, int kK>
inline constexpr int kShiftedBytes = kBytes + (kMn > kK ? kMn : kK) * kVectorBytes;

// One thread's share in copying and moving the tiles of one operand, one after the other along K. An operand whose runs
// all begin at aligned addresses, `aligned`, is copied as the tile that it is, and not moved.
template <class Tile, class Element, bool kMnContiguous, int kThreads>
class ShiftedCopy {
 public:
  // From g_tile on, the first element of the first tile, there are mn_left elements along MN; `ld` in elements. Before
  // g_operand nothing may be read.
  __device__ ShiftedCopy(const Element* g_tile, const Element* g_operand, int64_t ld, int64_t mn_left, bool aligned)
      : aligned_(aligned),
        mn_left_(mn_left < kMn ? static_cast<int>(mn_left) : kMn),
        step_bytes_(kRunsPerStep * ld * kElementBytes),
        g_operand_(reinterpret_cast<const char*>(g_operand)) {
    const char* g_run = reinterpret_cast<const char*>(g_tile + run() * ld);
    past_ = past(g_run);
    g_vector_ = g_run - past_ + vector() * kVectorBytes;
    const char* g_own_run = reinterpret_cast<const char*>(g_tile + own_run() * ld);
    own_past_ = past(g_own_run);
    g_last_ = g_own_run - own_past_ + kVectors * kVectorBytes;
    tile_bytes_ = (kMnContiguous ? Tile::kRuns * ld : Tile::kRunElems) * kElementBytes;
  }

  __device__ bool aligned() const { return aligned_; }

  // Begins the copy of the next tile, of which k_left elements along K exist, at least one: the rest is zeros. The
  // copies are part of the thread's current cp.async group.
  __device__ void copy(char* s_copied, int k_left) {
    const int exist = (kMnContiguous ? mn_left_ : k_left) * kElementBytes;  // bytes of a run
    const int runs = kMnContiguous ? k_left : mn_left_;
    const int valid = valid_bytes(exist, past_, vector());
    char* s_vector = s_copied + (aligned_ ? Tile::offset(run(), vector()) : offset(run(), vector()));
    const int s_step = aligned_ ? kRunsPerStep * Tile::kRunBytes : offset(kRunsPerStep, 0);
    const char* g_vector = g_vector_;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int here = i * kRunsPerStep + run() < runs ? valid : 0;
      if (i == 0 && here > 0 && g_vector < g_operand_) {
        copy_head(s_vector, g_vector, here);
      } else {
        ptx::cp_async_16(s_vector, g_vector, here);
      }
      s_vector += s_step;
      g_vector += step_bytes_;
    }
    g_vector_ += tile_bytes_;
    if (!aligned_ && static_cast<int>(threadIdx.x) < Tile::kRuns) {
      const int here = own_run() < runs ? valid_bytes(exist, own_past_, kVectors) : 0;
      ptx::cp_async_16(s_copied + offset(own_run(), kVectors), g_last_, here);
    }
    g_last_ += tile_bytes_;
  }

  // Moves a tile whose copies are complete, in all threads, to where FragmentLoader finds it.
  __device__ void move(char* s_tile, const char* s_copied) const {
    const int first = static_cast<int>(threadIdx.x) / Tile::kRuns * kOwnVectors;
    const auto* s_vectors = reinterpret_cast<const uint4*>(s_copied + offset(own_run(), first));
    uint4 here = s_vectors[0];
#pragma unroll
    for (int i = 0; i < kOwnVectors; ++i) {
      const uint4 next = s_vectors[i + 1];
      *reinterpret_cast<uint4*>(s_tile + Tile::offset(own_run(), first + i)) = shifted(here, next, own_past_);
      here = next;
    }
  }

 private:
  static constexpr int kElementBytes = sizeof(Element), kVectors = Tile::kVectorsPerRun;
  static constexpr int kMn = kMnContiguous ? Tile::kRunElems : Tile::kRuns;
  static constexpr int kRunsPerStep = kThreads / kVectors, kSteps = Tile::kRuns / kRunsPerStep;
  static_assert(kRunsPerStep * kVectors == kThreads && kSteps * kRunsPerStep == Tile::kRuns);
  static_assert(kRunsPerStep * kElementBytes % kVectorBytes == 0, "all runs of a thread begin as far past an address");
  static_assert((kMnContiguous ? Tile::kRuns : Tile::kRunElems) * kElementBytes % kVectorBytes == 0);
  static_assert(Tile::phase(kRunsPerStep) == Tile::phase(0), "all vectors of a thread have one phase");
  // Of the run whose vectors a thread moves, so that the banks of what a warp loads differ as the runs do: from run to
  // run it is an odd number of vectors.
  static constexpr int kOwnVectors = kVectors * Tile::kRuns / kThreads;
  static_assert(kOwnVectors * kThreads == kVectors * Tile::kRuns && Tile::kRuns <= kThreads && kVectors % 2 == 0);

  __device__ static int run() { return static_cast<int>(threadIdx.x) / kVectors; }
  __device__ static int vector() { return static_cast<int>(threadIdx.x) % kVectors; }
  __device__ static int own_run() { return static_cast<int>(threadIdx.x) % Tile::kRuns; }
  __device__ static int offset(int run, int vector) { return (run * (kVectors + 1) + vector) * kVectorBytes; }
  __device__ static int past(const char* address) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(address) % kVectorBytes);
  }

  // Of a vector that holds a part of a run, the bytes until the run ends, of which `exist` bytes exist.
  __device__ static int valid_bytes(int exist, int past, int vector) {
    const int left = exist + past - vector * kVectorBytes;
    return left < 0 ? 0 : left < kVectorBytes ? left : kVectorBytes;
  }

  // A vector that begins before the operand does. What is waited for here is at most one for each operand.
  __device__ void copy_head(char* s_vector, const char* g_vector, int valid) const {
    using Bits =
        std::conditional_t<kElementBytes == 4, uint32_t, std::conditional_t<kElementBytes == 2, uint16_t, uint8_t>>;
    uint32_t words[4] = {};
#pragma unroll
    for (int at = 0; at < kVectorBytes; at += kElementBytes) {
      if (g_vector + at < g_operand_ || at >= valid) continue;
      words[at / 4] |= uint32_t{*reinterpret_cast<const Bits*>(g_vector + at)} << at % 4 * 8;
    }
    *reinterpret_cast<uint4*>(s_vector) = make_uint4(words[0], words[1], words[2], words[3]);
  }

  bool aligned_;
  int mn_left_;
  int past_, own_past_;  // bytes between an aligned address and where a run begins: of run(), of own_run()
  int64_t step_bytes_, tile_bytes_;
  const char *g_operand_, *g_vector_, *g_last_;  // the vectors of the next tile
};

}  // namespace jaxgemm
