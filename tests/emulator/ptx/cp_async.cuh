// Emulates cuda/ptx/cp_async.cuh.
#pragma once

#include "core/emu.h"

namespace emu {
EMU_NOINLINE void cp_async(void* s_dst, const void* g_src, int bytes, int valid_bytes);
EMU_NOINLINE void cp_async_commit();
EMU_NOINLINE void cp_async_wait(uint32_t pending, const char* what);
}  // namespace emu

namespace jaxgemm::ptx {

EMU_INLINE void cp_async_16(void* s_dst, const void* g_src) { emu::cp_async(s_dst, g_src, 16, 16); }

EMU_INLINE void cp_async_16(void* s_dst, const void* g_src, int valid_bytes) {
  emu::cp_async(s_dst, g_src, 16, valid_bytes);
}

template <int kBytes>
EMU_INLINE void cp_async(void* s_dst, const void* g_src, int valid_bytes) {
  static_assert(kBytes == 4 || kBytes == 8);
  emu::cp_async(s_dst, g_src, kBytes, valid_bytes);
}

EMU_INLINE void cp_async_commit() { emu::cp_async_commit(); }

template <int kPending>
EMU_INLINE void cp_async_wait() {
  static_assert(kPending >= 0);
  emu::cp_async_wait(kPending, "cp.async.wait_group");
}

EMU_INLINE void cp_async_wait_all() {
  emu::cp_async_commit();
  emu::cp_async_wait(0, "cp.async.wait_all");
}

}  // namespace jaxgemm::ptx
