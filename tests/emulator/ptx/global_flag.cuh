// Emulates cuda/ptx/global_flag.cuh.
#pragma once

#include "core/emu.h"

namespace emu {
EMU_NOINLINE unsigned take_ticket(unsigned* g_next);
EMU_NOINLINE void raise_flag(unsigned* g_flag);
EMU_NOINLINE void wait_for_flag(const unsigned* g_flag);
}  // namespace emu

namespace jaxgemm::ptx {

EMU_INLINE unsigned take_ticket(unsigned* g_next) { return emu::take_ticket(g_next); }
EMU_INLINE void raise_flag(unsigned* g_flag) { emu::raise_flag(g_flag); }
EMU_INLINE void wait_for_flag(const unsigned* g_flag) { emu::wait_for_flag(g_flag); }

}  // namespace jaxgemm::ptx
