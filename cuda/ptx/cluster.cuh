// Clusters: CTAs that run at the same time and can reach each other's shared memory.
// PTX ISA, "Special Registers", "%cluster_ctarank"; "barrier.cluster"; "mapa".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ptx/address.cuh"
#include "ptx/mbarrier_types.cuh"

namespace jaxgemm::ptx {

__device__ inline int cluster_ctarank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Every thread of the cluster arrives once and then waits once: what any of them wrote before its arrival is visible to
// all after the wait. A CTA whose shared memory others still reach must not exit before such a barrier.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The same for threads that have nothing to show to the others: it does not wait until their writes have arrived.
__device__ inline void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  cluster_wait();
}

// Begins to write the word that lies where s_word does in the CTA of this rank, which completes four bytes of the
// mbarrier that lies there where s_barrier does: who waits for that sees it. PTX ISA, "st.async".
__device__ inline void store_async(unsigned& s_word, unsigned value, Mbarrier& s_barrier, int cta_rank) {
  asm volatile(
      "{\n"
      ".reg .b32 word, barrier;\n"
      "mapa.shared::cluster.u32 word, %0, %3;\n"
      "mapa.shared::cluster.u32 barrier, %1, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [word], %2, [barrier];\n"
      "}" ::"r"(shared_address(&s_word)),
      "r"(shared_address(&s_barrier)), "r"(value), "r"(cta_rank)
      : "memory");
}

// Where the object at s_pointer lies in the shared memory of the CTA of this rank: for ordinary loads and stores.
template <class T>
__device__ inline T* map_shared_rank(T* s_pointer, int cta_rank) {
  uint64_t mapped;
  asm("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(reinterpret_cast<uint64_t>(s_pointer)), "r"(cta_rank));
  return reinterpret_cast<T*>(mapped);
}

}  // namespace jaxgemm::ptx
