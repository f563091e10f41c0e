// Emulates cuda/ptx/cluster.cuh.
#pragma once

#include "core/emu.h"
#include "ptx/mbarrier_types.cuh"

namespace emu {
int cluster_ctarank();
EMU_NOINLINE void cluster_arrive();
EMU_NOINLINE void cluster_wait();
EMU_NOINLINE void store_async(unsigned& s_word, unsigned value, jaxgemm::ptx::Mbarrier& s_barrier, int cta_rank);
EMU_NOINLINE void* map_shared_rank(const void* s_pointer, int cta_rank);
}  // namespace emu

namespace jaxgemm::ptx {

EMU_INLINE int cluster_ctarank() { return emu::cluster_ctarank(); }
EMU_INLINE void cluster_arrive() { emu::cluster_arrive(); }
EMU_INLINE void cluster_wait() { emu::cluster_wait(); }
EMU_INLINE void cluster_sync() {
  emu::cluster_arrive();
  emu::cluster_wait();
}
EMU_INLINE void cluster_sync_relaxed() { cluster_sync(); }
EMU_INLINE void store_async(unsigned& s_word, unsigned value, Mbarrier& s_barrier, int cta_rank) {
  emu::store_async(s_word, value, s_barrier, cta_rank);
}

template <class T>
EMU_INLINE T* map_shared_rank(T* s_pointer, int cta_rank) {
  return static_cast<T*>(emu::map_shared_rank(s_pointer, cta_rank));
}

}  // namespace jaxgemm::ptx
