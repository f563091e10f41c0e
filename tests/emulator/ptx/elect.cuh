// Emulates cuda/ptx/elect.cuh.
#pragma once

#include "core/emu.h"

namespace emu {
EMU_NOINLINE bool elect_one();
}

namespace jaxgemm::ptx {

EMU_INLINE bool elect_one() { return emu::elect_one(); }

}  // namespace jaxgemm::ptx
