// The driver's side of TMA: cuTensorMapEncodeTiled with the restrictions that CUDA documents ("Tensor Map Object
// Management"), so that what it would refuse is refused here.
#include "ptx/tensor_map.h"

#include <cstring>
#include <string_view>

#include "core/runtime.h"

namespace emu {
namespace {

using jaxgemm::ptx::span_bytes;
using jaxgemm::ptx::Swizzle;

constexpr uint64_t kMagic = 0x70616d726f736e74;
constexpr uint64_t kMaxExtent = uint64_t{1} << 32, kEndOfStrides = uint64_t{1} << 40;
constexpr uint32_t kMaxBox = 256;
constexpr uint64_t kAlignment = 16;  // of the address, the strides, and a row of the box

int element_bytes(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32: return 4;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ: break;  // not modelled
  }
  return 0;
}

Swizzle swizzle_of(CUtensorMapSwizzle mode) {
  switch (mode) {
    case CU_TENSOR_MAP_SWIZZLE_32B: return Swizzle::k32B;
    case CU_TENSOR_MAP_SWIZZLE_64B: return Swizzle::k64B;
    case CU_TENSOR_MAP_SWIZZLE_128B: return Swizzle::k128B;
    case CU_TENSOR_MAP_SWIZZLE_NONE: break;
  }
  return Swizzle::kNone;
}

bool valid_tensor(const void* address, uint32_t rank, const uint64_t* extents, const uint64_t* strides) {
  if (address == nullptr || reinterpret_cast<uintptr_t>(address) % kAlignment != 0) return false;
  for (uint32_t i = 0; i < rank; ++i) {
    if (extents[i] == 0 || extents[i] > kMaxExtent) return false;
  }
  for (uint32_t i = 0; i + 1 < rank; ++i) {
    if (strides[i] % kAlignment != 0 || strides[i] >= kEndOfStrides) return false;
  }
  return true;
}

bool valid_box(uint32_t rank, const uint32_t* box, const uint32_t* steps) {
  constexpr uint32_t kMaxStep = 8;
  for (uint32_t i = 0; i < rank; ++i) {
    if (box[i] == 0 || box[i] > kMaxBox || steps[i] == 0 || steps[i] > kMaxStep) return false;
  }
  return true;
}

// Interleaved layouts, steps and the NaN that can fill what is out of bounds; and boxes narrower than the swizzle's
// span, whose rows' distance in shared memory is not documented.
bool modelled(const TensorMap& map, const uint32_t* steps, CUtensorMapInterleave interleave,
              CUtensorMapFloatOOBfill fill) {
  for (int i = 1; i < map.rank; ++i) {
    if (steps[i] != 1) return false;
  }
  return interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE &&
         (map.swizzle == Swizzle::kNone || map.row_bytes() == static_cast<uint32_t>(span_bytes(map.swizzle)));
}

}  // namespace

const TensorMap& tensor_map_of(const CUtensorMap& map, int rank, const char* what, Pc where) {
  const auto& decoded = reinterpret_cast<const TensorMap&>(map);
  if (reinterpret_cast<uintptr_t>(&map) % alignof(CUtensorMap) != 0) {
    fatal(Kind::kMisaligned, where, std::string(what) + ": a tensor map must be aligned to 64 bytes");
  }
  if (decoded.magic != kMagic) {
    fatal(Kind::kProtocol, where, std::string(what) + ": not a tensor map that cuTensorMapEncodeTiled made");
  }
  if (rank != 0 && decoded.rank != rank) {
    fatal(Kind::kProtocol, where,
          std::string(what) + " of " + std::to_string(rank) + " dimensions with a tensor map of " +
              std::to_string(decoded.rank));
  }
  return decoded;
}

void* driver_entry_point(const char* name) {
  if (std::string_view(name) == "cuTensorMapEncodeTiled") return reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  return nullptr;
}

}  // namespace emu

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  using namespace emu;
  const int bytes = element_bytes(type);
  const bool valid_modes = swizzle >= CU_TENSOR_MAP_SWIZZLE_NONE && swizzle <= CU_TENSOR_MAP_SWIZZLE_128B &&
                           promotion >= CU_TENSOR_MAP_L2_PROMOTION_NONE &&
                           promotion <= CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  if (map == nullptr || reinterpret_cast<uintptr_t>(map) % alignof(CUtensorMap) != 0 || bytes == 0 || !valid_modes ||
      rank < 1 || rank > kMaxTensorRank || !valid_tensor(address, rank, extents, strides) ||
      !valid_box(rank, box, steps)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  TensorMap made = {.magic = kMagic,
                    .address = static_cast<unsigned char*>(address),
                    .strides = {static_cast<uint64_t>(bytes)},
                    .last_index = {},
                    .box = {1, 1, 1, 1, 1},
                    .rank = static_cast<uint8_t>(rank),
                    .element_bytes = static_cast<uint8_t>(bytes),
                    .swizzle = swizzle_of(swizzle),
                    .rounds_to_tf32 = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32};
  for (uint32_t i = 0; i < rank; ++i) {
    made.last_index[i] = static_cast<uint32_t>(extents[i] - 1);
    made.box[i] = static_cast<uint16_t>(box[i]);
    if (i > 0) made.strides[i] = strides[i - 1];
  }
  const bool too_wide =
      made.swizzle != Swizzle::kNone && made.row_bytes() > static_cast<uint32_t>(span_bytes(made.swizzle));
  if (made.row_bytes() % kAlignment != 0 || too_wide) return CUDA_ERROR_INVALID_VALUE;
  if (!modelled(made, steps, interleave, fill)) return CUDA_ERROR_NOT_SUPPORTED;
  std::memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}
