// Emulates cuda/ptx/convert.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "ptx/float_formats.h"

namespace jaxgemm::ptx {

inline uint32_t to_tf32(float x) { return emu::float_to_tf32(x); }

template <class T>
inline uint32_t pack(float low, float high) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  if constexpr (std::is_same_v<T, __half>) {
    return emu::float_to_f16(low) | static_cast<uint32_t>(emu::float_to_f16(high)) << 16;
  } else {
    return emu::float_to_bf16(low) | static_cast<uint32_t>(emu::float_to_bf16(high)) << 16;
  }
}

}  // namespace jaxgemm::ptx
