// Words that GPUs leave in each other's memory. PTX ISA, "Memory Consistency Model": an access of 64 bits is single, a
// vector of two is two of them in any order. So each 64 bits here are half data and half a flag that says whose they
// are, and who finds the flag has the data: no other order between them is asked for.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ptx/peer_types.cuh"

namespace jaxgemm::ptx {

// At a multiple of 16 bytes, here or on another GPU.
__device__ inline void store_flagged(FlaggedPair* g_dst, const FlaggedPair& pair) {
  const auto bits = [&](int i) { return static_cast<uint64_t>(pair.words[i].flag) << 32 | pair.words[i].data; };
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(g_dst)), "l"(bits(0)),
               "l"(bits(1))
               : "memory");
}

__device__ inline FlaggedPair load_flagged(const FlaggedPair* g_src) {
  uint64_t bits[2];
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(bits[0]), "=l"(bits[1])
               : "l"(__cvta_generic_to_global(g_src))
               : "memory");
  const auto word = [&](int i) {
    return FlaggedWord{static_cast<uint32_t>(bits[i]), static_cast<uint32_t>(bits[i] >> 32)};
  };
  return {word(0), word(1)};
}

}  // namespace jaxgemm::ptx
