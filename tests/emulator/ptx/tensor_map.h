// What the emulator keeps in the 128 bytes of a CUtensorMap, which is opaque on the GPU.
#pragma once

#include <cuda.h>

#include "core/emu.h"
#include "ptx/wgmma_types.cuh"

namespace emu {

inline constexpr int kMaxTensorRank = 5;

struct TensorMap {
  uint64_t magic;
  unsigned char* address;
  uint64_t strides[kMaxTensorRank];     // bytes from one element of the dimension to the next
  uint32_t last_index[kMaxTensorRank];  // extent - 1: extents reach 2^32
  uint16_t box[kMaxTensorRank];         // extents beyond the rank are 1
  uint8_t rank, element_bytes;
  jaxgemm::ptx::Swizzle swizzle;
  bool rounds_to_tf32;

  uint32_t row_bytes() const { return uint32_t{box[0]} * element_bytes; }  // of the box, contiguous in global memory
  uint32_t rows() const { return uint32_t{box[1]} * box[2]; }
  uint32_t box_bytes() const { return row_bytes() * rows(); }
  bool contains(int dimension, int64_t coordinate) const {
    return coordinate >= 0 && coordinate <= last_index[dimension];
  }
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

// What a kernel hands to an instruction; fatal() if it is no map of `rank` dimensions.
const TensorMap& tensor_map_of(const CUtensorMap& map, int rank, const char* what, Pc where);

}  // namespace emu
