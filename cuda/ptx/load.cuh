// Loads of what nobody reads again. PTX ISA, "Data Movement and Conversion Instructions: ld", "ld.global.nc".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace jaxgemm::ptx {

// 16 bytes at a multiple of 16, which no one writes while the kernel runs; they are left out of the L1 cache.
__device__ inline uint4 load_once_16(const uint4* g_src) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(__cvta_generic_to_global(g_src)));
  return v;
}

}  // namespace jaxgemm::ptx
