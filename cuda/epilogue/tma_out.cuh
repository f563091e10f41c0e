// The way of wgmma's accumulators out of registers, in pieces of 64 rows that each warpgroup stages in shared memory of
// its own, rounded: swizzled, for TMA to store while the next tile is multiplied, if TMA can address out; else for each
// warp to store its rows (rows_out.cuh; where they lie end to end, whole_rows.cuh).
#pragma once

#include "epilogue/epilogue.cuh"
#include "epilogue/rows_out.cuh"
#include "epilogue/staged.cuh"
#include "epilogue/whole_rows.cuh"
#include "ptx/address.cuh"
#include "ptx/barrier.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pin.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/swizzled_rows.cuh"

namespace jaxgemm::sm90 {

inline constexpr int kOutRows = ptx::kWgmmaM, kOutSlots = 2;

inline constexpr int kMaxTileCols = 256;

// A warpgroup's.
struct OutStaging {
  union {
    alignas(kAtomBytes) char slots[kOutSlots][kOutRows * kRowBytes];
    StagedRows rows[ptx::kWarpgroupThreads / 32];
    RunOfRows runs[ptx::kWarpgroupThreads / 32];
  };
  alignas(16) float bias[kMaxTileCols];
};

// alpha, and what a thread of the warpgroup fetches of the bias of a tile's columns: it comes while the tile is
// multiplied.
template <int kCols>
struct Terms {
  static constexpr int kEach = (kCols + ptx::kWarpgroupThreads - 1) / ptx::kWarpgroupThreads;
  float alpha, bias[kEach];
};

// Columns of out that a row of a slot holds.
template <class Out>
inline constexpr int kSlotCols = kRowBytes / static_cast<int>(sizeof(Out));

// What a warpgroup writes to. `warpgroup` is the named barrier of its threads.
class OutWriter {
 public:
  __device__ OutWriter(OutStaging& s_staging, int warpgroup)
      : s_staging_(s_staging), warpgroup_(warpgroup), thread_(static_cast<int>(threadIdx.x) % ptx::kWarpgroupThreads) {}

  // Of the tile whose first column is `col`. Columns behind N have no bias.
  template <int kCols>
  __device__ Terms<kCols> fetch(const Epilogue& epilogue, int64_t N, int64_t batch, int64_t col) const {
    Terms<kCols> terms = {epilogue.factor(), {}};
    if (epilogue.bias == nullptr) return terms;
#pragma unroll
    for (int i = 0; i < Terms<kCols>::kEach; ++i) {
      const int at = thread_ + i * ptx::kWarpgroupThreads;
      if (at < kCols && col + at < N) terms.bias[i] = epilogue.bias_of(batch, col + at);
    }
    return terms;
  }

  // Before a tile's sums are finished. A barrier has been passed since those of the last one were.
  template <int kCols>
  __device__ void stage(const Terms<kCols>& terms) {
    static_assert(kCols <= kMaxTileCols);
#pragma unroll
    for (int i = 0; i < Terms<kCols>::kEach; ++i) {
      const int at = thread_ + i * ptx::kWarpgroupThreads;
      if (at < kCols) s_staging_.bias[at] = terms.bias[i];
    }
    meet();
  }

  // Multiplies 64 rows of sums by alpha, adds the bias and applies the activation.
  template <int kRegisters>
  __device__ void finish(float (&sums)[kRegisters], const Epilogue& epilogue, float alpha) const {
    if (epilogue.alpha) scale(sums, alpha);
    if (epilogue.bias) add_bias(sums);
    if (epilogue.activation != Activation::kNone) activate_all(sums, epilogue.activation);
  }
  template <int kRegisters>
  __device__ void finish(int32_t (&)[kRegisters], const Epilogue&, float) const {}

  // Rounds 64 rows of sums to `Out` and has TMA store what of them lies inside out.
  template <class Out, class Sum, int kRegisters>
  __device__ void store(const Sum (&sums)[kRegisters], const CUtensorMap& map, int row, int col, int batch) {
    constexpr int kPieceRegisters = kSlotCols<Out> / 2, kPieces = kRegisters / kPieceRegisters;
    static_assert(kPieces * kPieceRegisters == kRegisters);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      store_piece(map, row, col + piece * kSlotCols<Out>, batch,
                  [&](char* s_slot) { stage<Out>(s_slot, sums, piece * kPieceRegisters); });
    }
  }

  // Has TMA store the slot, whose elements the warpgroup lays down in fill(s_slot), at slot_at().
  template <class Fill>
  __device__ void store_piece(const CUtensorMap& map, int row, int col, int batch, Fill&& fill) {
    char* s_slot = s_staging_.slots[slot_];
    slot_ ^= 1;
    if (thread_ == 0) ptx::tma_wait_group_read<kOutSlots - 1>();  // of all but the last store
    meet();
    fill(s_slot);
    ptx::fence_proxy_async();
    meet();
    if (thread_ == 0) {
      ptx::tma_store_3d(map, s_slot, col, row, batch);
      ptx::tma_commit_group();
    }
  }

  // What of a slot's row is `byte` bytes from its beginning.
  __device__ static char* slot_at(char* s_slot, int row, int byte) {
    return s_slot + ptx::swizzled(kSwizzle, static_cast<uint32_t>(row * kRowBytes + byte));
  }

  // The same where TMA cannot store: rows of out begin at any element. Of 16 bits, two columns of it take one register:
  // those of half of the sums are free then. kInRuns: there are registers for rows of out that lie end to end to go out
  // together.
  template <class Out, bool kInRuns, class Sum, int kRegisters>
  __device__ void store_anywhere(Sum (&sums)[kRegisters], const Epilogue& epilogue, const TileCoord& tile, int64_t M,
                                 int64_t N) {
    if constexpr (sizeof(Out) == 2) {
      uint32_t pairs[kRegisters / 2];
#pragma unroll
      for (int i = 0; i < kRegisters / 2; ++i) pairs[i] = packed<Out>(sums[2 * i], sums[2 * i + 1]);
      write_rows<Out, kInRuns>(pairs, epilogue, tile, M, N);
    } else {
      static_assert(std::is_same_v<Out, Sum>);
      write_rows<Out, kInRuns>(sums, epilogue, tile, M, N);
    }
  }

  template <int kRegisters>
  __device__ static void scale(float (&sums)[kRegisters], float factor) {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) sums[i] *= factor;
  }

  template <int kRegisters>
  __device__ static void activate_all(float (&sums)[kRegisters], Activation activation) {
    constexpr int kAtOnce = kRegisters < 16 ? kRegisters : 16;
    switch (activation) {
      case Activation::kNone: return;
      case Activation::kRelu: return activate_in_turns<kRegisters, Activation::kRelu>(sums);
      case Activation::kSilu: return activate_in_turns<kAtOnce, Activation::kSilu>(sums);
      case Activation::kGeluTanh: return activate_in_turns<kAtOnce, Activation::kGeluTanh>(sums);
      case Activation::kGeluErf: return activate_in_turns<kAtOnce / 2, Activation::kGeluErf>(sums);
    }
  }

  // What follows from the thread's number is computed after this, and not kept in registers until then.
  __device__ void pin_thread() {
    int pinned[] = {thread_};
    ptx::pin_registers(pinned);
    thread_ = pinned[0];
  }

  // Before the CTA's shared memory is gone.
  __device__ void wait() {
    if (thread_ == 0) ptx::tma_wait_group_read<0>();
  }

 private:
  __device__ void meet() const { ptx::barrier_sync(warpgroup_, ptx::kWarpgroupThreads); }

  template <int kRegisters>
  __device__ void add_bias(float (&sums)[kRegisters]) const {
    const float* s_bias = s_staging_.bias + ptx::accumulator_element(thread_, 0).col;
#pragma unroll
    for (int i = 0; i < kRegisters; i += 4) {
      const float2 pair = *reinterpret_cast<const float2*>(s_bias + i / 4 * 8);
      sums[i] += pair.x;
      sums[i + 1] += pair.y;
      sums[i + 2] += pair.x;
      sums[i + 3] += pair.y;
    }
  }

  // Long code is there for kAtOnce sums only, enough to hide what each waits for: all take turns in their registers.
  template <int kAtOnce, Activation kActivation, int kRegisters>
  __device__ static void activate_in_turns(float (&sums)[kRegisters]) {
    static_assert(kRegisters % kAtOnce == 0);
#pragma unroll 1
    for (int i = 0; i < kRegisters; i += kAtOnce) {
      float done[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) done[j] = activate(kActivation, sums[j]);
#pragma unroll
      for (int j = 0; j < kRegisters - kAtOnce; ++j) sums[j] = sums[j + kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) sums[kRegisters - kAtOnce + j] = done[j];
    }
  }

  template <class Out, class Sum, int kRegisters>
  __device__ void stage(char* s_slot, const Sum (&sums)[kRegisters], int first) const {
    const int lane = thread_ % 32, warp_row = thread_ / 32 * 16;
    if constexpr (sizeof(Out) == 2) {
      const int row = warp_row + lane % 16;  // matrices: rows 0-7 and 8-15 of 8 columns, the same of the next 8
#pragma unroll
      for (int i = 0; i < kSlotCols<Out> / 16; ++i) {
        uint32_t pairs[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          pairs[r] = packed<Out>(sums[first + i * 8 + r * 2], sums[first + i * 8 + r * 2 + 1]);
        }
        ptx::stmatrix<false>(slot_at(s_slot, row, (i * 2 + lane / 16) * ptx::kChunkBytes), pairs);
      }
    } else {
      static_assert(std::is_same_v<Out, Sum>);
      using Pair = typename VectorsOf<Sum>::Pair;
#pragma unroll
      for (int i = 0; i < kSlotCols<Out> / 8; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = warp_row + half * 8 + lane / 4, col = i * 8 + lane % 4 * 2;
          *reinterpret_cast<Pair*>(slot_at(s_slot, row, col * static_cast<int>(sizeof(Out)))) =
              Pair{sums[first + i * 4 + half * 2], sums[first + i * 4 + half * 2 + 1]};
        }
      }
    }
  }

  template <class Out, bool kInRuns, class Value, int kRegisters>
  __device__ void write_rows(Value (&values)[kRegisters], const Epilogue& epilogue, const TileCoord& tile, int64_t M,
                             int64_t N) {
    constexpr int kTileCols = kRegisters * 2 * static_cast<int>(sizeof(Value) / sizeof(Out));
    const int warp = thread_ / 32;
    const int64_t row = tile.row + warp * StagedRows::kRows;
    meet();  // all have read the bias, which may be staged anew after this
    constexpr int kMostCols = kMostRunCols<sizeof(Out)>;
    if constexpr (kInRuns && kTileCols <= kMostCols + 1) {
      if (epilogue.ld == N && N <= (kTileCols < kMostCols ? kTileCols : kMostCols)) {
        Out* g_rows = static_cast<Out*>(epilogue.out) + tile.batch * epilogue.batch_stride + row * epilogue.ld;
        const int64_t rows = M - row;
        return WholeRows<Out, Value>::write(values, s_staging_.runs[warp], thread_ % 32, g_rows,
                                            static_cast<int>(rows < StagedRows::kRows ? rows : StagedRows::kRows),
                                            static_cast<int>(epilogue.ld));
      }
    }
    Out* g_rows = static_cast<Out*>(epilogue.out) + tile.batch * epilogue.batch_stride + row * epilogue.ld + tile.col;
    const int64_t rows = M - row, cols = N - tile.col;
    RowsOut<Out, Value>::write(values, s_staging_.rows[warp], thread_ % 32, g_rows, epilogue.ld,
                               static_cast<int>(rows < StagedRows::kRows ? rows : StagedRows::kRows),
                               static_cast<int>(cols < kMaxTileCols ? cols : kMaxTileCols));
  }

  template <class Out>
  using Pair16 = std::conditional_t<std::is_same_v<Out, __half>, __half2, __nv_bfloat162>;

  template <class Out>
  __device__ static Pair16<Out> rounded(float low, float high) {
    if constexpr (std::is_same_v<Out, __half>) {
      return __floats2half2_rn(low, high);
    } else {
      return __floats2bfloat162_rn(low, high);
    }
  }

  template <class Out>
  __device__ static uint32_t packed(float low, float high) {
    const Pair16<Out> pair = rounded<Out>(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }

  OutStaging& s_staging_;
  int warpgroup_, thread_, slot_ = 0;
};

}  // namespace jaxgemm::sm90
