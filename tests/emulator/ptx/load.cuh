// Emulates cuda/ptx/load.cuh.
#pragma once

#include "core/emu.h"

namespace jaxgemm::ptx {

EMU_INLINE uint4 load_once_16(const uint4* g_src) { return *g_src; }

}  // namespace jaxgemm::ptx
