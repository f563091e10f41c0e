// Emulates cuda/ptx/tma.cuh.
#pragma once

#include <cuda.h>

#include "core/emu.h"
#include "ptx/mbarrier_types.cuh"

namespace emu {
using jaxgemm::ptx::Mbarrier;

struct BoxOrigin {
  int rank;
  int coordinates[3];
};
// Without a mask of CTAs the box goes to the executing one.
inline constexpr int kOwnCta = -1;

EMU_NOINLINE void tma_prefetch_map(const CUtensorMap& map);
EMU_NOINLINE void tma_load(void* s_box, const CUtensorMap& map, Mbarrier& s_barrier, BoxOrigin origin, int cta_mask);
EMU_NOINLINE void tma_store(const CUtensorMap& map, const void* s_box, BoxOrigin origin);
EMU_NOINLINE void tma_commit_group();
EMU_NOINLINE void tma_wait_group(size_t pending, const char* what);
}  // namespace emu

namespace jaxgemm::ptx {

EMU_INLINE void tma_prefetch_map(const CUtensorMap& map) { emu::tma_prefetch_map(map); }

EMU_INLINE void tma_load_2d(void* s_box, const CUtensorMap& map, Mbarrier& s_barrier, int x, int y) {
  emu::tma_load(s_box, map, s_barrier, {2, {x, y, 0}}, emu::kOwnCta);
}
EMU_INLINE void tma_load_3d(void* s_box, const CUtensorMap& map, Mbarrier& s_barrier, int x, int y, int z) {
  emu::tma_load(s_box, map, s_barrier, {3, {x, y, z}}, emu::kOwnCta);
}
EMU_INLINE void tma_load_multicast_2d(void* s_box, const CUtensorMap& map, Mbarrier& s_barrier, int x, int y,
                                      uint16_t cta_mask) {
  emu::tma_load(s_box, map, s_barrier, {2, {x, y, 0}}, cta_mask);
}
EMU_INLINE void tma_load_multicast_3d(void* s_box, const CUtensorMap& map, Mbarrier& s_barrier, int x, int y, int z,
                                      uint16_t cta_mask) {
  emu::tma_load(s_box, map, s_barrier, {3, {x, y, z}}, cta_mask);
}

EMU_INLINE void tma_store_2d(const CUtensorMap& map, const void* s_box, int x, int y) {
  emu::tma_store(map, s_box, {2, {x, y, 0}});
}
EMU_INLINE void tma_store_3d(const CUtensorMap& map, const void* s_box, int x, int y, int z) {
  emu::tma_store(map, s_box, {3, {x, y, z}});
}

EMU_INLINE void tma_commit_group() { emu::tma_commit_group(); }

template <int kPending>
EMU_INLINE void tma_wait_group_read() {
  emu::tma_wait_group(kPending, "cp.async.bulk.wait_group.read");
}

template <int kPending>
EMU_INLINE void tma_wait_group() {
  emu::tma_wait_group(kPending, "cp.async.bulk.wait_group");
}

}  // namespace jaxgemm::ptx
