// Tensor maps: what TMA copies between global and shared memory. A map is made on the host for each launch and passed
// to the kernel as a `const __grid_constant__ CUtensorMap`.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "gemm.h"
#include "ptx/wgmma_types.cuh"

namespace jaxgemm {

// Matrices in global memory and the box of one copy. `inner` is the contiguous dimension: element (z, y, x) lies at
// z * batch_stride + y * outer_stride + x. In shared memory rows of box_inner elements follow each other; if they are
// swizzled, each is as long as the swizzle's span (TMA takes shorter ones too, but where it puts them is not
// documented).
struct TensorBox {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 2;                                // 2 or 3: with `batch` and its stride
  int64_t inner = 0, outer = 0, batch = 1;     // extents, in elements
  int64_t outer_stride = 0, batch_stride = 0;  // in elements
  int box_inner = 0, box_outer = 0;            // of the box, in elements; one matrix deep
  ptx::Swizzle swizzle = ptx::Swizzle::kNone;
  bool streams = false;         // is read from DRAM, in order: L2 then fetches more at a time
  bool rounds_to_tf32 = false;  // float32, on the way into shared memory: to nearest, ties to even
};

// Writes the map of `box`; returns "" or a sentence that says what TMA cannot do.
std::string encode_tensor_map(CUtensorMap& map, const TensorBox& box);

// The box of an operand's tile of tile_rows x tile_cols elements, along whichever dimension is contiguous in memory,
// for tma_load_3d(..., inner, outer, batch). Matrices that all batches share have a batch of 1: their third coordinate
// is always 0. A swizzled box is as wide as the swizzle's span, of which the tile's width is a multiple.
TensorBox operand_box(const void* data, DType dtype, const MatrixView& view, int64_t batch, int tile_rows,
                      int tile_cols, ptx::Swizzle swizzle);

}  // namespace jaxgemm
