// Words in global memory by which CTAs of a grid that form no cluster know of each other. All are 0 before the kernel
// begins. PTX ISA, "Memory Consistency Model", "Release and Acquire Patterns"; "atom", "st.release", "ld.acquire".
//
// A CTA may wait for those only that have begun before it, else it could wait for one that finds no room while those
// that wait take all of it. Tickets say which those are: CUDA does not promise that CTAs begin in the order of
// blockIdx.
#pragma once

#include <cuda_runtime.h>

namespace jaxgemm::ptx {

// How many have taken one before.
__device__ inline unsigned take_ticket(unsigned* g_next) {
  unsigned ticket;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(ticket)
               : "l"(__cvta_generic_to_global(g_next))
               : "memory");
  return ticket;
}

// What this thread wrote, or knows of by a barrier, is visible to who sees the flag.
__device__ inline void raise_flag(unsigned* g_flag) {
  asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(g_flag)) : "memory");
}

__device__ inline void wait_for_flag(const unsigned* g_flag) {
  unsigned raised;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(raised)
                 : "l"(__cvta_generic_to_global(g_flag))
                 : "memory");
  } while (raised == 0);
}

}  // namespace jaxgemm::ptx
