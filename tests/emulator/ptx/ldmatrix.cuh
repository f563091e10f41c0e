// Emulates cuda/ptx/ldmatrix.cuh.
#pragma once

#include "core/emu.h"

namespace emu {
EMU_NOINLINE void ldmatrix(uint32_t* regs, const void* s_row, int matrices, bool transpose);
}

namespace jaxgemm::ptx {

template <bool kTranspose, int N>
EMU_INLINE void ldmatrix(uint32_t (&r)[N], const void* s_row) {
  static_assert(N == 1 || N == 2 || N == 4);
  emu::ldmatrix(r, s_row, N, kTranspose);
}

}  // namespace jaxgemm::ptx
