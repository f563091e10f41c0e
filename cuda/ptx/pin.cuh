// Registers that the compiler takes to be written here: what follows from them is computed after this, neither before
// nor from what they held. It is no instruction.
#pragma once

#include <type_traits>

namespace jaxgemm::ptx {

template <class Value, int kRegisters>
__device__ inline void pin_registers(Value (&values)[kRegisters]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) {
    if constexpr (std::is_same_v<Value, float>) asm volatile("" : "+f"(values[i])::"memory");
    if constexpr (!std::is_same_v<Value, float>) asm volatile("" : "+r"(values[i])::"memory");
  }
}
template <class Value, int kBlocks, int kRegisters>
__device__ inline void pin_registers(Value (&blocks)[kBlocks][kRegisters]) {
#pragma unroll
  for (auto& block : blocks) pin_registers(block);
}

}  // namespace jaxgemm::ptx
