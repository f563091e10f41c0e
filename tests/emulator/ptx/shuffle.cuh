// Emulates cuda/ptx/shuffle.cuh.
#pragma once

#include "core/emu.h"

namespace emu {
EMU_NOINLINE uint32_t shuffle_xor(uint32_t value, int mask);
}

namespace jaxgemm::ptx {

EMU_INLINE uint32_t shuffle_xor(uint32_t value, int mask) { return emu::shuffle_xor(value, mask); }

}  // namespace jaxgemm::ptx
