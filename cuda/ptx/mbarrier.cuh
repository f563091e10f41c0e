// mbarrier: a barrier object in shared memory that counts arrivals of threads and bytes of asynchronous copies.
// PTX ISA, "Parallel Synchronization and Communication Instructions", "mbarrier" and its subsections; "membar/fence".
//
// Arrivals release and waits acquire at the scope of the CTA, those of the cluster's other CTAs included: a wider scope
// costs a memory fence at each. That is enough for what these barriers order between CTAs: the end of wgmma's or
// ldmatrix's reads in one before the next TMA copy from another. What ordinary loads and stores do before another CTA
// goes on needs cluster_sync(), or the two functions below that end in _cluster.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ptx/address.cuh"
#include "ptx/mbarrier_types.cuh"

namespace jaxgemm::ptx {

// One thread initialises it; fence_mbarrier_init() and a barrier come before anybody else's use.
__device__ inline void mbarrier_init(Mbarrier& s_barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&s_barrier)), "r"(count) : "memory");
}

// Its eight bytes become ordinary memory again.
__device__ inline void mbarrier_invalidate(Mbarrier& s_barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(&s_barrier)) : "memory");
}

// Makes this thread's mbarrier_init() visible to the cluster and to the copy engine.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Makes this thread's ordinary writes to shared memory visible to TMA and wgmma, as far as later synchronisation orders
// those after it.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void mbarrier_arrive(Mbarrier& s_barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&s_barrier)) : "memory");
}

// Arrives at the barrier that lies where s_barrier does, in the CTA of this rank in the cluster.
__device__ inline void mbarrier_arrive_remote(Mbarrier& s_barrier, int cta_rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(shared_address(&s_barrier)),
      "r"(cta_rank)
      : "memory");
}

// The same for all that this thread has done or seen to be done, if mbarrier_wait_cluster() waits for it there.
__device__ inline void mbarrier_arrive_cluster(Mbarrier& s_barrier, int cta_rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(shared_address(&s_barrier)),
      "r"(cta_rank)
      : "memory");
}

// The phase in progress also waits for this many bytes.
__device__ inline void mbarrier_expect_tx(Mbarrier& s_barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&s_barrier)), "r"(bytes)
               : "memory");
}

// Both: the bytes are expected before the arrival can complete the phase.
__device__ inline void mbarrier_arrive_expect_tx(Mbarrier& s_barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&s_barrier)), "r"(bytes)
               : "memory");
}

// Whether the phase of this parity is complete, perhaps after a short sleep.
__device__ inline bool mbarrier_try_wait(Mbarrier& s_barrier, uint32_t parity) {
  uint32_t complete;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}"
      : "=r"(complete)
      : "r"(shared_address(&s_barrier)), "r"(parity)
      : "memory");
  return complete != 0;
}

__device__ inline void mbarrier_wait(Mbarrier& s_barrier, uint32_t parity) {
  while (!mbarrier_try_wait(s_barrier, parity)) {
  }
}

__device__ inline void mbarrier_wait_cluster(Mbarrier& s_barrier, uint32_t parity) {
  uint32_t complete = 0;
  while (complete == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.b32 %0, 1, 0, p;\n"
        "}"
        : "=r"(complete)
        : "r"(shared_address(&s_barrier)), "r"(parity)
        : "memory");
  }
}

}  // namespace jaxgemm::ptx
