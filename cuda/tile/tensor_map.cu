#include <cuda_runtime.h>

#include <algorithm>

#include "tensor_map.h"

namespace jaxgemm {
namespace {

// The limits of cuTensorMapEncodeTiled, CUDA driver API, "Tensor Map Object Management".
constexpr int64_t kAlignmentBytes = 16;  // of the address, the strides, and a row of the box
constexpr int64_t kMaxExtent = int64_t{1} << 32, kMaxStrideBytes = (int64_t{1} << 40) - 1;
constexpr int kMaxBoxElems = 256;

constexpr unsigned kDriverVersion = 12000;  // CUDA version whose entry point is asked for: TMA came with it
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver is found at run time: a machine without one can load this library. nullptr if it is missing or too old.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, kDriverVersion, cudaEnableDefault, &found);
    if (status == cudaSuccess && found == cudaDriverEntryPointSuccess) return reinterpret_cast<EncodeTiled>(entry);
    (void)cudaGetLastError();  // the error is reported here: it must not be found again by the next caller
    return EncodeTiled{};
  }();
  return function;
}

// TMA's rounding is not documented; what it does was read off an H200, as the emulator's probes can be.
CUtensorMapDataType data_type(const TensorBox& box) {
  switch (box.dtype) {
    case DType::kF32: return box.rounds_to_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kF16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kBF16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kS32: return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case DType::kS8:
    case DType::kF8E4M3FN:
    case DType::kF8E5M2: break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

CUtensorMapSwizzle swizzle_mode(ptx::Swizzle swizzle) {
  switch (swizzle) {
    case ptx::Swizzle::k32B: return CU_TENSOR_MAP_SWIZZLE_32B;
    case ptx::Swizzle::k64B: return CU_TENSOR_MAP_SWIZZLE_64B;
    case ptx::Swizzle::k128B: return CU_TENSOR_MAP_SWIZZLE_128B;
    case ptx::Swizzle::kNone: break;
  }
  return CU_TENSOR_MAP_SWIZZLE_NONE;
}

std::string value(const char* what, int64_t number, const std::string& rule) {
  return std::string("TMA needs ") + what + " " + rule + ", not " + std::to_string(number);
}

// One dimension: extent, the stride to its next element (0: the innermost) and the box.
std::string check_dimension(const char* extent_name, int64_t extent, const char* stride_name, int64_t stride_bytes) {
  if (extent < 1 || extent > kMaxExtent) return value(extent_name, extent, "of 1 to 2^32 elements");
  if (stride_bytes % kAlignmentBytes != 0 || stride_bytes < 0 || stride_bytes > kMaxStrideBytes) {
    return value(stride_name, stride_bytes, "in bytes that is a multiple of 16 and less than 2^40");
  }
  return {};
}

std::string check(const TensorBox& box) {
  const int64_t element_bytes = size_bytes(box.dtype);
  if (box.rank != 2 && box.rank != 3) return value("a rank", box.rank, "of 2 or 3");
  if (const auto address = reinterpret_cast<uintptr_t>(box.data); address == 0 || address % kAlignmentBytes != 0) {
    return "TMA needs an address that is a multiple of 16, not one that is " +
           (address == 0 ? "null" : std::to_string(address % kAlignmentBytes) + " bytes past one");
  }
  if (std::string error = check_dimension("an inner extent", box.inner, "", 0); !error.empty()) return error;
  if (std::string error =
          check_dimension("an outer extent", box.outer, "an outer stride", box.outer_stride * element_bytes);
      !error.empty()) {
    return error;
  }
  if (box.rank == 3) {
    if (std::string error = check_dimension("a batch", box.batch, "a batch stride", box.batch_stride * element_bytes);
        !error.empty()) {
      return error;
    }
  }
  if (box.box_inner < 1 || box.box_inner > kMaxBoxElems) {
    return value("a box", box.box_inner, "of 1 to 256 inner elements");
  }
  if (box.box_outer < 1 || box.box_outer > kMaxBoxElems) {
    return value("a box", box.box_outer, "of 1 to 256 outer elements");
  }
  const int64_t row_bytes = box.box_inner * element_bytes;
  if (row_bytes % kAlignmentBytes != 0) return value("a box with rows", row_bytes, "of a multiple of 16 bytes");
  if (const int span = span_bytes(box.swizzle); box.swizzle != ptx::Swizzle::kNone && row_bytes != span) {
    return value("a box with rows", row_bytes, "of the " + std::to_string(span) + " bytes of its swizzle's span");
  }
  return {};
}

}  // namespace

std::string encode_tensor_map(CUtensorMap& map, const TensorBox& box) {
  if (std::string error = check(box); !error.empty()) return error;
  const EncodeTiled encode = encode_tiled();
  if (encode == nullptr)
    return "the CUDA driver has no cuTensorMapEncodeTiled: TMA needs a driver of CUDA 12.0 or newer";

  const auto element_bytes = static_cast<cuuint64_t>(size_bytes(box.dtype));
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(box.inner), static_cast<cuuint64_t>(box.outer),
                                static_cast<cuuint64_t>(box.batch)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(box.outer_stride) * element_bytes,
                                static_cast<cuuint64_t>(box.batch_stride) * element_bytes};
  const cuuint32_t box_extents[] = {static_cast<cuuint32_t>(box.box_inner), static_cast<cuuint32_t>(box.box_outer), 1};
  const cuuint32_t steps[] = {1, 1, 1};
  const CUresult result =
      encode(&map, data_type(box), static_cast<cuuint32_t>(box.rank), const_cast<void*>(box.data), extents, strides,
             box_extents, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_mode(box.swizzle),
             box.streams ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return "cuTensorMapEncodeTiled: CUDA driver error " + std::to_string(static_cast<int>(result)) + " for a tensor of " +
         std::to_string(box.inner) + " x " + std::to_string(box.outer) + " x " + std::to_string(box.batch) +
         " elements with strides of " + std::to_string(strides[0]) + " and " + std::to_string(strides[1]) + " bytes";
}

TensorBox operand_box(const void* data, DType dtype, const MatrixView& view, int64_t batch, int tile_rows,
                      int tile_cols, ptx::Swizzle swizzle) {
  const bool shared = view.batch_stride == 0;
  const int tile_inner = view.transposed ? tile_rows : tile_cols;
  const int span =
      swizzle == ptx::Swizzle::kNone ? tile_inner : static_cast<int>(span_bytes(swizzle) / size_bytes(dtype));
  const int64_t outer = view.transposed ? view.cols : view.rows;
  return {.data = data,
          .dtype = dtype,
          .rank = 3,
          .inner = view.transposed ? view.rows : view.cols,
          .outer = outer,
          .batch = shared ? 1 : batch,
          .outer_stride = view.ld,
          .batch_stride = shared ? outer * view.ld : view.batch_stride,  // one matrix: never used
          .box_inner = std::min(tile_inner, span),
          .box_outer = view.transposed ? tile_cols : tile_rows,
          .swizzle = swizzle};
}

}  // namespace jaxgemm
