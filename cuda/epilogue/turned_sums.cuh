// The way out of wgmma's accumulators where the operands have changed places: a row of the accumulator (64 x tokens) is
// a column of out. From registers, without a barrier, so that a warp waits for no other.
#pragma once

#include <algorithm>
#include <cstdint>

#include "epilogue/epilogue.cuh"
#include "epilogue/tma_out.cuh"
#include "ptx/convert.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "tile/scheduler.cuh"
#include "tile/swizzled_rows.cuh"

namespace jaxgemm {

// What a warp turns its sums in: 16 tokens of 16 columns, of 16 bits.
struct TurnedTile {
  static constexpr int kRows = 16, kRowBytes = 32;
  alignas(ptx::kChunkBytes) char bytes[kRows * kRowBytes];

  // A warp's eight rows of one column of chunks lie in different banks, and so do four whole rows.
  __device__ static int at(int row, int chunk) { return row * kRowBytes + (chunk ^ (row / 4 % 2)) * ptx::kChunkBytes; }
};

// Applies the epilogue to a warpgroup's sums and writes what of them lies inside out, from tile.row and tile.col on.
template <class T, int kRegisters>
class TurnedSums {
 public:
  __device__ TurnedSums(const Epilogue& epilogue, const TileCoord& tile, int64_t M, int64_t N)
      : epilogue_(epilogue),
        index_(tile.batch * epilogue.batch_stride + tile.row * epilogue.ld + tile.col + warp() * kWarpCols),
        rows_(static_cast<int>(M - tile.row < kRegisters * 2 ? M - tile.row : kRegisters * 2)),
        cols_(static_cast<int>(N - tile.col < ptx::kWgmmaM ? N - tile.col : ptx::kWgmmaM) - warp() * kWarpCols),
        batch_(tile.batch),
        first_col_(tile.col + warp() * kWarpCols) {}

  __device__ void write(float (&sums)[kRegisters], TurnedTile& s_tile) const {
    finish(sums);
    if (epilogue_.out_dtype != DType::kF32 && epilogue_.vectors_aligned) {
      write_vectors(sums, s_tile);
    } else {
      write_elements(sums);
    }
  }

  // The same, rounded to T, into rows of the warpgroup's columns in shared memory, swizzled as TMA reads them.
  __device__ void lay_down(float (&sums)[kRegisters], char* s_rows) const {
    constexpr int kTokensAtOnce = 16;
    finish(sums);
    const uint32_t at = ptx::swizzled(
        sm90::kSwizzle, static_cast<uint32_t>(store_row() * sm90::kRowBytes + warp() * TurnedTile::kRowBytes +
                                              store_chunk() * ptx::kChunkBytes));
#pragma unroll
    for (int i = 0; i < kRegisters; i += kTokensAtOnce / 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) pairs[j] = ptx::pack<T>(sums[i + 2 * j], sums[i + 2 * j + 1]);
      ptx::stmatrix<true>(s_rows + i / (kTokensAtOnce / 2) * kTokensAtOnce * sm90::kRowBytes + at, pairs);
    }
  }

 private:
  static constexpr int kWarpCols = ptx::kWgmmaM / 4, kAtOnce = std::min(kRegisters, TurnedTile::kRows / 2);
  static_assert(kRegisters % kAtOnce == 0);

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  // Of the eight columns of 16 bytes whose address this lane has for stmatrix.
  __device__ static int store_row() { return lane() / 16 * 8 + lane() % 8; }
  __device__ static int store_chunk() { return lane() / 8 % 2; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) % ptx::kWarpgroupThreads / 32; }

  __device__ void finish(float (&sums)[kRegisters]) const {
    if (epilogue_.alpha) sm90::OutWriter::scale(sums, *epilogue_.alpha);
    if (epilogue_.bias) {
      const int col = lane() / 4;
      const float bias[2] = {col < cols_ ? epilogue_.bias_of(batch_, first_col_ + col) : 0.0f,
                             col + 8 < cols_ ? epilogue_.bias_of(batch_, first_col_ + col + 8) : 0.0f};
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) sums[i] += bias[i / 2 % 2];
    }
    if (epilogue_.activation != Activation::kNone) sm90::OutWriter::activate_all(sums, epilogue_.activation);
  }

  // 16 bytes at once, rounded to T.
  __device__ void write_vectors(const float (&sums)[kRegisters], TurnedTile& s_tile) const {
    const int row = lane() / 2, chunk = lane() % 2;
    T* g_out = static_cast<T*>(epilogue_.out) + index_ + row * epilogue_.ld + chunk * kElems;
    const bool inside = row < kAtOnce * 2 && chunk * kElems < cols_;
#pragma unroll
    for (int i = 0; i < kRegisters; i += kAtOnce) {
      const int first = i * 2;
      if (first >= rows_) break;
      uint32_t pairs[kAtOnce / 2];
#pragma unroll
      for (int j = 0; j < kAtOnce / 2; ++j) pairs[j] = ptx::pack<T>(sums[i + 2 * j], sums[i + 2 * j + 1]);
      __syncwarp();  // what was turned before has been read
      ptx::stmatrix<true>(s_tile.bytes + TurnedTile::at(store_row(), store_chunk()), pairs);
      __syncwarp();
      if (inside && first + row < rows_) {
        *reinterpret_cast<uint4*>(g_out + first * epilogue_.ld) =
            *reinterpret_cast<const uint4*>(s_tile.bytes + TurnedTile::at(row, chunk));
      }
    }
  }

  // One by one: neighbours in the rows of out are other lanes'. The sums take turns in the first registers.
  __device__ void write_elements(float (&sums)[kRegisters]) const {
#pragma unroll 1
    for (int first = 0; first < rows_; first += 2 * kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const ptx::ElementOf element = ptx::accumulator_element(lane(), i);
        if (first + element.col < rows_ && element.row < cols_) {
          epilogue_.put(index_ + (first + element.col) * epilogue_.ld + element.row, sums[i]);
        }
      }
#pragma unroll
      for (int i = kAtOnce; i < kRegisters; ++i) sums[i - kAtOnce] = sums[i];
    }
  }

  static constexpr int kElems = ptx::kChunkBytes / static_cast<int>(sizeof(T));
  const Epilogue& epilogue_;
  const int64_t index_;              // in out, of the warp's first element
  const int rows_, cols_;            // that lie inside out; columns may be less than none
  const int64_t batch_, first_col_;  // of out
};

// The sums of a warpgroup's blocks of columns, from tile.col on.
template <class T, int kBlocks, int kRegisters>
__device__ void write_blocks(float (&sums)[kBlocks][kRegisters], TurnedTile& s_tile, const Epilogue& epilogue,
                             TileCoord tile, int64_t M, int64_t N) {
#pragma unroll 1
  for (int block = 0; block < kBlocks; ++block, tile.col += ptx::kWgmmaM) {  // in turns: the code is long
    TurnedSums<T, kRegisters>(epilogue, tile, M, N).write(sums[0], s_tile);
    static_assert(kBlocks <= 2, "the last one is the next one");
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) sums[0][i] = sums[kBlocks - 1][i];
  }
}

}  // namespace jaxgemm
