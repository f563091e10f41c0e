// Emulates cuda/ptx/mbarrier.cuh.
#pragma once

#include "core/emu.h"
#include "ptx/mbarrier_types.cuh"

namespace emu {
using jaxgemm::ptx::Mbarrier;

EMU_NOINLINE void mbarrier_init(Mbarrier& s_barrier, int count);
EMU_NOINLINE void mbarrier_invalidate(Mbarrier& s_barrier);
EMU_NOINLINE void fence_mbarrier_init();
EMU_NOINLINE void fence_proxy_async();
EMU_NOINLINE void mbarrier_arrive(Mbarrier& s_barrier);
EMU_NOINLINE void mbarrier_arrive_remote(Mbarrier& s_barrier, int cta_rank);
EMU_NOINLINE void mbarrier_arrive_cluster(Mbarrier& s_barrier, int cta_rank);
EMU_NOINLINE void mbarrier_expect_tx(Mbarrier& s_barrier, uint32_t bytes);
EMU_NOINLINE void mbarrier_arrive_expect_tx(Mbarrier& s_barrier, uint32_t bytes);
EMU_NOINLINE bool mbarrier_try_wait(Mbarrier& s_barrier, uint32_t parity);
EMU_NOINLINE void mbarrier_wait(Mbarrier& s_barrier, uint32_t parity);
EMU_NOINLINE void mbarrier_wait_cluster(Mbarrier& s_barrier, uint32_t parity);
}  // namespace emu

namespace jaxgemm::ptx {

EMU_INLINE void mbarrier_init(Mbarrier& s_barrier, int count) { emu::mbarrier_init(s_barrier, count); }
EMU_INLINE void mbarrier_invalidate(Mbarrier& s_barrier) { emu::mbarrier_invalidate(s_barrier); }
EMU_INLINE void fence_mbarrier_init() { emu::fence_mbarrier_init(); }
EMU_INLINE void fence_proxy_async() { emu::fence_proxy_async(); }
EMU_INLINE void mbarrier_arrive(Mbarrier& s_barrier) { emu::mbarrier_arrive(s_barrier); }
EMU_INLINE void mbarrier_arrive_remote(Mbarrier& s_barrier, int cta_rank) {
  emu::mbarrier_arrive_remote(s_barrier, cta_rank);
}
EMU_INLINE void mbarrier_arrive_cluster(Mbarrier& s_barrier, int cta_rank) {
  emu::mbarrier_arrive_cluster(s_barrier, cta_rank);
}
EMU_INLINE void mbarrier_expect_tx(Mbarrier& s_barrier, uint32_t bytes) { emu::mbarrier_expect_tx(s_barrier, bytes); }
EMU_INLINE void mbarrier_arrive_expect_tx(Mbarrier& s_barrier, uint32_t bytes) {
  emu::mbarrier_arrive_expect_tx(s_barrier, bytes);
}
EMU_INLINE bool mbarrier_try_wait(Mbarrier& s_barrier, uint32_t parity) {
  return emu::mbarrier_try_wait(s_barrier, parity);
}
EMU_INLINE void mbarrier_wait(Mbarrier& s_barrier, uint32_t parity) { emu::mbarrier_wait(s_barrier, parity); }
EMU_INLINE void mbarrier_wait_cluster(Mbarrier& s_barrier, uint32_t parity) {
  emu::mbarrier_wait_cluster(s_barrier, parity);
}

}  // namespace jaxgemm::ptx
