// Emulates cuda/ptx/pin.cuh: there is nothing that the order could change here.
#pragma once

#include "core/emu.h"

namespace jaxgemm::ptx {

template <class Value, int kRegisters>
EMU_INLINE void pin_registers(Value (&)[kRegisters]) {}
template <class Value, int kBlocks, int kRegisters>
EMU_INLINE void pin_registers(Value (&)[kBlocks][kRegisters]) {}

}  // namespace jaxgemm::ptx
