// Emulates cuda/ptx/registers.cuh: registers are not counted here, but the rule of who executes it is checked.
#pragma once

#include "core/emu.h"
#include "ptx/registers_types.cuh"

namespace emu {
EMU_NOINLINE void setmaxnreg(int registers);
}

namespace jaxgemm::ptx {

template <int kRegisters>
EMU_INLINE void register_dealloc() {
  static_assert(kIsRegisterCount<kRegisters>);
  emu::setmaxnreg(kRegisters);
}

template <int kRegisters>
EMU_INLINE void register_alloc() {
  static_assert(kIsRegisterCount<kRegisters>);
  emu::setmaxnreg(kRegisters);
}

}  // namespace jaxgemm::ptx
