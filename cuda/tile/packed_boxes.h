// What TMA copies of quantised weights: boxes of packed codes, and of the scales or zero points of their groups.
#pragma once

#include <string>
#include <utility>

#include "gemm.h"
#include "tile/packed.cuh"
#include "tile/tensor_map.h"

namespace jaxgemm {

// For tma_load_2d(..., word, tile): `tiles_k` packed tiles of the same columns, one after the other, of as many tiles
// of columns as `columns` has; those of all batches.
inline TensorBox codes_box(const GemmArgs& args, int tiles_k, int columns) {
  constexpr int kWords = kPackedTileBytes / sizeof(int32_t);
  const int64_t words = packed_tiles_k(args.problem) * kWords;
  return {.data = args.rhs,
          .dtype = DType::kS32,
          .inner = words,
          .outer = packed_tiles_n(args.problem) * args.problem.batch,
          .outer_stride = words,
          .box_inner = tiles_k * kWords,
          .box_outer = columns / kPackedTileN,
          .streams = true};
}

// For tma_load_2d(..., column, group): what so many groups have for so many columns; those of all batches.
inline TensorBox groups_box(const Problem& p, const void* data, DType dtype, int columns, int groups) {
  return {.data = data,
          .dtype = dtype,
          .inner = p.N,
          .outer = p.codes.groups(p.K) * p.batch,
          .outer_stride = p.N,
          .box_inner = columns,
          .box_outer = groups};
}

// Tokens as TMA reads them: where, and how many of one box.
struct TokenBoxes {
  const void* data;
  const MatrixView& view;
  int rows;
};

// The maps of tokens, codes, scales and, if there are any, zero points: what a k-tile of CTA tile `tile` needs, tokens
// in boxes of kPackedTileK of K, codes of `tiles_k` packed tiles.
template <class Maps>
std::string encode_codes_maps(Maps& maps, const GemmArgs& args, const TokenBoxes& tokens, const Tile& tile, int tiles_k,
                              int segments) {
  const Problem& p = args.problem;
  for (const auto& [map, box] :
       {std::pair{&maps.tokens, operand_box(tokens.data, p.lhs_dtype, tokens.view, p.batch, tokens.rows, kPackedTileK,
                                            ptx::Swizzle::k128B)},
        std::pair{&maps.codes, codes_box(args, tiles_k, tile.n)},
        std::pair{&maps.scales, groups_box(p, args.scales, p.codes.scale_dtype, tile.n, segments)},
        std::pair{&maps.zeros, groups_box(p, args.zeros, DType::kS8, tile.n, segments)}}) {
    if (map == &maps.zeros && p.codes.zeros == Zeros::kMiddle) continue;
    if (std::string error = encode_tensor_map(*map, box); !error.empty()) return error;
  }
  return {};
}

}  // namespace jaxgemm
