// The way out of sums as wgmma leaves them in a warpgroup's registers: to out through shared memory, or to a partial
// tile.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "epilogue/epilogue.cuh"
#include "epilogue/recompute.cuh"
#include "epilogue/staged.cuh"
#include "epilogue/tma_out.cuh"
#include "ptx/wgmma.cuh"
#include "tile/scheduler.cuh"
#include "tile/sm90_schedule.cuh"

namespace jaxgemm::sm90 {

// Sums that an Op does not get right, again. The code, which is long, is there once: all take turns in one register.
template <int kBlocks, int kRegisters>
__device__ void fix_sums(float (&sums)[kBlocks][kRegisters], const Recompute& fix, const TileCoord& tile,
                         const Shape& shape) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (!fix.wanted(sums[block])) continue;
#pragma unroll 1
    for (int i = 0; i < kRegisters; ++i) {
      const ptx::ElementOf element = ptx::accumulator_element(static_cast<int>(threadIdx.x) % kWarpgroup, i);
      const int64_t row = tile.row + block * ptx::kWgmmaM + element.row, col = tile.col + element.col;
      float sum = sums[block][0];
      if (row < shape.M && col < shape.N) sum = fix.fixed(sum, tile.batch, row, col);
#pragma unroll
      for (int j = 1; j < kRegisters; ++j) sums[block][j - 1] = sums[block][j];
      sums[block][kRegisters - 1] = sum;
    }
  }
}
template <int kBlocks, class Sum, int kRegisters>
__device__ void fix_sums(Sum (&)[kBlocks][kRegisters], const Keep&, const TileCoord&, const Shape&) {}

// To out, the consumer's rows of this tile. kInRuns: see OutWriter::store_anywhere().
template <Way kWay, class Op, bool kInRuns, class Sum, int kBlocks, int kRegisters>
__device__ void write(Sum (&sums)[kBlocks][kRegisters], OutWriter& writer, const CUtensorMap& map, bool tma_stores,
                      const Epilogue& epilogue, const Terms<kRegisters * 2>& terms, const TileCoord& tile,
                      const Shape& shape) {
  if constexpr (kWay == Way::kAny) {
    if (epilogue.bias) writer.stage(terms);
  }
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const TileCoord at = {tile.batch, tile.row + block * ptx::kWgmmaM, tile.col};
    if constexpr (kWay == Way::kAny) writer.finish(sums[block], epilogue, terms.alpha);
    const auto store = [&]<class Out>(Out) {
      if (kWay == Way::kAny && !tma_stores) {
        writer.template store_anywhere<Out, kInRuns>(sums[block], epilogue, at, shape.M, shape.N);
      } else {
        writer.template store<Out>(sums[block], map, static_cast<int>(at.row), static_cast<int>(at.col),
                                   static_cast<int>(at.batch));
      }
    };
    if constexpr (sizeof(typename Op::Lhs) == 2) {
      epilogue.out_dtype == DType::kF32 ? store(float{}) : store(typename Op::Lhs{});
    } else if constexpr (ptx::kIsFp8<typename Op::Lhs>) {
      if (epilogue.out_dtype == DType::kF32) {
        store(float{});
      } else {
        epilogue.out_dtype == DType::kF16 ? store(__half{}) : store(__nv_bfloat16{});
      }
    } else {
      store(Sum{});
    }
  }
}

// Sums of a part of K: as they are, to the partial tile of this unit.
template <class Config, class Sum, int kBlocks, int kRegisters>
__device__ void write_partial(const Sum (&sums)[kBlocks][kRegisters], Sum* g_partial, int first_row) {
  using Pair = typename VectorsOf<Sum>::Pair;
  constexpr int kStride = Config::kCtaTile.n;
  const auto [row, col] = ptx::accumulator_element(static_cast<int>(threadIdx.x) % kWarpgroup, 0);
  Sum* g_first = g_partial + (first_row + row) * kStride + col;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < kRegisters; i += 2) {
      constexpr int kFirstThread = 0;  // whose elements are as far from each other as any thread's
      const ptx::ElementOf element = ptx::accumulator_element(kFirstThread, i);
      *reinterpret_cast<Pair*>(g_first + (block * ptx::kWgmmaM + element.row) * kStride + element.col) =
          Pair{sums[block][i], sums[block][i + 1]};
    }
  }
}

}  // namespace jaxgemm::sm90
