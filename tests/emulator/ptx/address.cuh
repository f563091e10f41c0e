// Emulates cuda/ptx/address.cuh.
#pragma once

#include "core/emu.h"

namespace emu {
EMU_NOINLINE uint32_t address_in_cta(const void* s_pointer);
}

namespace jaxgemm::ptx {

EMU_INLINE uint32_t shared_address(const void* s_pointer) { return emu::address_in_cta(s_pointer); }

}  // namespace jaxgemm::ptx
