// Named barriers: some warps of a CTA meet without the others. PTX ISA, "Parallel Synchronization and Communication
// Instructions", "bar, barrier".
//
// Barrier 0 is the one of __syncthreads(): ids here are 1 to 15. `threads` counts all that take part, those that only
// arrive included; it is a multiple of 32, and the same in all calls that meet. Whole warps call these functions.
#pragma once

#include <cuda_runtime.h>

namespace jaxgemm::ptx {

// Arrives and waits for all others: what they wrote before is visible after.
__device__ inline void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives without waiting.
__device__ inline void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace jaxgemm::ptx
