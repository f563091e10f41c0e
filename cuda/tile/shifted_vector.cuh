// 16 bytes that begin anywhere, of the two neighbouring vectors that hold them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace jaxgemm {

// Those that begin `bytes` (0 to 15) after the first vector does.
__device__ inline uint4 shifted(const uint4& first, const uint4& second, unsigned bytes) {
  const unsigned selector = 0x3210 + bytes % 4 * 0x1111;  // of __byte_perm: four bytes from bytes % 4 on
  uint32_t words[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) words[i] = bytes & 8 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) words[i] = bytes & 4 ? words[i + 1] : words[i];
  return make_uint4(__byte_perm(words[0], words[1], selector), __byte_perm(words[1], words[2], selector),
                    __byte_perm(words[2], words[3], selector), __byte_perm(words[3], words[4], selector));
}

}  // namespace jaxgemm
