// The way of a warp's rounded sums to rows of out that begin at any element, where TMA cannot store. Pieces of its rows
// are staged in shared memory as they are. Of two neighbouring chunks there a lane takes what is one vector of out, so
// that only the ends of a tile's rows go out element by element.
#pragma once

#include <cstdint>

#include "ptx/pin.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "tile/swizzled_rows.cuh"

namespace jaxgemm::sm90 {

// From row to row of the staged rows: what the piece before left over, a chunk, then the piece. What a warp stores at
// once, eight rows of one chunk or of two, lies in different banks.
template <class Out>
inline constexpr int kStagedStride = kRowBytes + (sizeof(Out) == 2 ? 1 : 2) * ptx::kChunkBytes;

// Of a warp.
struct StagedRows {
  static constexpr int kRows = ptx::kWgmmaM / 4;
  alignas(ptx::kChunkBytes) char bytes[kRows * kStagedStride<float>];
};

// Values are elements of out, or pairs of 16-bit ones.
template <class Out, class Value>
class RowsOut {
 public:
  // Of the warp's rows from g_rows on, and so many columns of the tile, which are more than the values have if more of
  // the tile exists; `ld` in elements. The code, which is long, is there once: the values take turns in the registers
  // of the first piece.
  template <int kRegisters>
  __device__ static void write(Value (&values)[kRegisters], StagedRows& s_rows, int lane, Out* g_rows, int64_t ld,
                               int rows, int cols) {
    static_assert(kRegisters % kPieceRegisters == 0);
    constexpr int kTileCols = kRegisters / kPieceRegisters * kCols;
    if (cols > kTileCols) cols = kTileCols;
#pragma unroll 1
    for (bool begins = true;; begins = false) {
      int pinned[] = {lane};  // what follows from it is computed for each piece, and not kept in registers
      ptx::pin_registers(pinned);
      lane = pinned[0];
      stage(s_rows, lane, values);
#pragma unroll
      for (int i = kPieceRegisters; i < kRegisters; ++i) values[i - kPieceRegisters] = values[i];
      __syncwarp();
      const bool ends = cols <= kCols;
      write_piece(s_rows, lane, g_rows, ld, rows, cols, begins, ends);
      if (ends) return;
      __syncwarp();  // of all lanes, what is overwritten
      if (lane < StagedRows::kRows) *at(s_rows, lane, 0) = *at(s_rows, lane, kChunks);
      __syncwarp();
      g_rows += kCols;
      cols -= kCols;
    }
  }

 private:
  static constexpr int kChunks = kRowBytes / ptx::kChunkBytes;  // of a piece
  static constexpr int kElems = ptx::kChunkBytes / static_cast<int>(sizeof(Out)), kCols = kChunks * kElems;
  static constexpr int kPieceRegisters = StagedRows::kRows * kRowBytes / 32 / static_cast<int>(sizeof(Value));

  // A chunk of a row: the first one is what the piece before left over.
  __device__ static uint4* at(StagedRows& s_rows, int row, int chunk) {
    return reinterpret_cast<uint4*>(s_rows.bytes + row * kStagedStride<Out> + chunk * ptx::kChunkBytes);
  }

  // How many elements an address lies past a multiple of 16 bytes.
  __device__ static int phase(const Out* address) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(address) % ptx::kChunkBytes / sizeof(Out));
  }

  template <int kRegisters>
  __device__ static void stage(StagedRows& s_rows, int lane, const Value (&values)[kRegisters]) {
    if constexpr (sizeof(Out) == 2) {
      uint4* s_chunk = at(s_rows, lane % 16, 1 + lane / 16);  // matrices: rows 0-7 and 8-15 of a chunk, then the next
#pragma unroll
      for (int i = 0; i < kChunks / 2; ++i) {
        const uint32_t pairs[] = {values[i * 4], values[i * 4 + 1], values[i * 4 + 2], values[i * 4 + 3]};
        ptx::stmatrix<false>(s_chunk + i * 2, pairs);
      }
    } else {
      struct alignas(2 * sizeof(Value)) Pair {
        Value low, high;
      };
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Pair* s_pair = reinterpret_cast<Pair*>(at(s_rows, half * 8 + lane / 4, 1)) + lane % 4;
#pragma unroll
        for (int i = 0; i < kCols / 8; ++i) s_pair[i * 4] = {values[i * 4 + half * 2], values[i * 4 + half * 2 + 1]};
      }
    }
  }

  // Eight lanes to a row: whole vectors, then the elements before the first of them, if the tile begins with this
  // piece, and behind the last, if it ends with it. The first vector of a row that begins within it is whole if a piece
  // lies before.
  __device__ static void write_piece(StagedRows& s_rows, int lane, Out* g_rows, int64_t ld, int rows, int cols,
                                     bool begins, bool ends) {
    constexpr int kRowsAtOnce = 32 / kChunks;
    const int j = lane % kChunks;
    Out* g_row = g_rows + lane / kChunks * ld;
#pragma unroll
    for (int row = lane / kChunks, i = 0; i < StagedRows::kRows / kRowsAtOnce; ++i) {
      const int first = phase(g_row);
      if (row < rows && (j * kElems >= first || !begins) && (j + 1) * kElems - first <= cols) {
        *reinterpret_cast<uint4*>(g_row - first + j * kElems) = vector_at(s_rows, row, j, first, begins);
      }
      if (row < rows && (begins || ends)) {
        const Out* s_row = reinterpret_cast<const Out*>(at(s_rows, row, 1));
        const int whole = begins ? (kElems - first) % kElems : -first, head_end = whole < cols ? whole : cols;
        const int whole_end = (first + cols) / kElems * kElems - first;
        const int tail = (head_end < whole_end ? whole_end : head_end) + j;
        if (j < head_end) g_row[j] = s_row[j];
        if (ends && tail < cols) g_row[tail] = s_row[tail];
      }
      row += kRowsAtOnce;
      g_row += kRowsAtOnce * ld;
    }
  }

  // A chunk of a row, but `first` elements before it. The first one of a tile lies where it is, as there is none
  // before.
  __device__ static uint4 vector_at(StagedRows& s_rows, int row, int chunk, int first, bool begins) {
    if constexpr (sizeof(Out) == 4) {  // in different banks, as most rows begin at different words of a vector
      const auto* s_words = reinterpret_cast<const uint32_t*>(at(s_rows, row, 1 + chunk)) - first;
      return make_uint4(s_words[0], s_words[1], s_words[2], s_words[3]);
    } else {
      const uint4 here = *at(s_rows, row, 1 + chunk), before = *at(s_rows, row, chunk == 0 && begins ? 1 : chunk);
      const uint32_t words[] = {before.x, before.y, before.z, before.w, here.x, here.y, here.z, here.w};
      uint32_t by_four[6], by_two[5], out[4];  // moved by so many elements, if at all
#pragma unroll
      for (int i = 0; i < 6; ++i) by_four[i] = first & 4 ? words[i] : words[i + 2];
#pragma unroll
      for (int i = 0; i < 5; ++i) by_two[i] = first & 2 ? by_four[i] : by_four[i + 1];
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = __byte_perm(by_two[i], by_two[i + 1], first & 1 ? 0x5432 : 0x7654);
      return make_uint4(out[0], out[1], out[2], out[3]);
    }
  }
};

}  // namespace jaxgemm::sm90
