// The way out of sums of which each thread can hold four neighbouring columns, 16 bytes at once: from registers; or, of
// products of bytes, by way of TMA's slots where it can address out.
#pragma once

#include <type_traits>

#include "epilogue/epilogue.cuh"
#include "epilogue/tma_out.cuh"
#include "ptx/wgmma.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm::sm90 {

// What TMA needs.
struct QuadsByTma {
  OutWriter& writer;
  const CUtensorMap& map;
  bool possible;
};

// Rounds all sums to `Out`. A slot's columns are those of all warps, or of half of them.
template <class Out, class Loop>
__device__ void store_quads(const typename Loop::Sums& sums, const QuadsByTma& tma, const TileCoord& tile,
                            int first_col) {
  constexpr int kCols = kSlotCols<Out>, kPieceRegisters = kOutRows / 2;
#pragma unroll
  for (int block = 0; block < Loop::kBlocks; ++block) {
    const auto place = Loop::Fragments::place(block);
#pragma unroll
    for (int first = 0; first < Loop::kRegisters; first += kPieceRegisters) {
      const int first_row = Loop::rows_further(first);
#pragma unroll
      for (int col = block * ptx::kWgmmaM; col < (block + 1) * ptx::kWgmmaM; col += kCols) {
        tma.writer.store_piece(
            tma.map, static_cast<int>(tile.row) + first_row, static_cast<int>(tile.col) + first_col + col,
            static_cast<int>(tile.batch), [&](char* s_slot) {
              if (place.col < col || place.col >= col + kCols) return;
#pragma unroll
              for (int i = first; i < first + kPieceRegisters; i += Loop::Fragments::kQuadRegisters) {
                const auto quad = Loop::Fragments::quad(sums[block], i);
                char* s_quad = OutWriter::slot_at(s_slot, place.row + Loop::rows_further(i) - first_row,
                                                  (place.col - col) * static_cast<int>(sizeof(Out)));
                round4(reinterpret_cast<Out*>(s_quad), {quad.x, quad.y, quad.z, quad.w});
              }
            });
      }
    }
  }
}

// Multiplies by alpha, adds the bias and applies the activation to sums that store_quads() takes: each thread has two
// neighbouring columns of a block, one in every other pair of registers.
template <class Loop>
__device__ void finish_quads(typename Loop::Sums& sums, const Epilogue& epilogue, int64_t batch, int64_t first_col,
                             int64_t N) {
#pragma unroll
  for (int block = 0; block < Loop::kBlocks; ++block) {
    if (epilogue.alpha) OutWriter::scale(sums[block], *epilogue.alpha);
    if (epilogue.bias) {
      const int64_t col = first_col + Loop::Fragments::col_of_sums(block);
      const float bias[2] = {col < N ? epilogue.bias_of(batch, col) : 0.0f,
                             col + 1 < N ? epilogue.bias_of(batch, col + 1) : 0.0f};
#pragma unroll
      for (int i = 0; i < Loop::kRegisters; ++i) sums[block][i] += bias[i / 2 % 2];
    }
    if (epilogue.activation != Activation::kNone) OutWriter::activate_all(sums[block], epilogue.activation);
  }
}

// Of Loop's sums, of the columns from first_col on, what lies inside out, where the CTA's tile begins at `tile`.
// kPlain: out is float32 and its rows hold whole aligned quads, and there is nothing to do but to store them.
template <bool kPlain, class Loop>
__device__ void write_quads(typename Loop::Sums& sums, const Epilogue& epilogue, const QuadsByTma& tma,
                            const TileCoord& tile, int first_col, int64_t M, int64_t N) {
  using Sum = typename Loop::Sum;
  const auto inside = [&](int row, int col) { return tile.row + row < M && tile.col + col < N; };
  if constexpr (kPlain) {
    auto* g_tile =
        static_cast<float*>(epilogue.out) + tile.batch * epilogue.batch_stride + tile.row * epilogue.ld + tile.col;
    Loop::for_each_quad(sums, first_col, [&](int row, int col, const float4& quad) {
      if (inside(row, col)) *reinterpret_cast<float4*>(g_tile + row * epilogue.ld + col) = quad;
    });
    return;
  }
  if constexpr (!Loop::kWritesPlain) {
    if (tma.possible) {
      if constexpr (std::is_same_v<Sum, int32_t>) {
        store_quads<int32_t, Loop>(sums, tma, tile, first_col);
      } else {
        finish_quads<Loop>(sums, epilogue, tile.batch, tile.col + first_col, N);
        if (epilogue.out_dtype == DType::kF32) {
          store_quads<float, Loop>(sums, tma, tile, first_col);
        } else if (epilogue.out_dtype == DType::kF16) {
          store_quads<__half, Loop>(sums, tma, tile, first_col);
        } else {
          store_quads<__nv_bfloat16, Loop>(sums, tma, tile, first_col);
        }
      }
      return;
    }
  }
  Loop::for_each_quad_in_turn(sums, first_col, [&](int row, int col, const typename Loop::Quad& quad) {
    if (!inside(row, col)) return;
    epilogue.store4(tile.batch, tile.row + row, tile.col + col, N, {quad.x, quad.y, quad.z, quad.w});
  });
}

}  // namespace jaxgemm::sm90
