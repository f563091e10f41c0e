// shfl: the lanes of a warp exchange registers. PTX ISA, "Data Movement and Conversion Instructions: shfl.sync".
#pragma once

#include <cstdint>

namespace jaxgemm::ptx {

// What the lane whose number differs in the bits of `mask` gives. All 32 lanes call it together.
__device__ inline uint32_t shuffle_xor(uint32_t value, int mask) {
  uint32_t theirs;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(theirs) : "r"(value), "r"(mask));
  return theirs;
}

}  // namespace jaxgemm::ptx
