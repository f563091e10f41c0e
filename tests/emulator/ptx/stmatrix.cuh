// Emulates cuda/ptx/stmatrix.cuh.
#pragma once

#include "core/emu.h"

namespace emu {
EMU_NOINLINE void stmatrix(void* s_row, const uint32_t* regs, int matrices, bool transpose);
}

namespace jaxgemm::ptx {

template <bool kTranspose, int N>
EMU_INLINE void stmatrix(void* s_row, const uint32_t (&r)[N]) {
  static_assert(N == 1 || N == 2 || N == 4);
  emu::stmatrix(s_row, r, N, kTranspose);
}

}  // namespace jaxgemm::ptx
