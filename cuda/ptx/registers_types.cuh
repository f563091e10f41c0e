// The constants of registers.cuh, for the kernels and for the emulator.
#pragma once

namespace jaxgemm::ptx {

// PTX ISA, "setmaxnreg": 24 to 256, a multiple of 8.
template <int kRegisters>
inline constexpr bool kIsRegisterCount = kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0;

}  // namespace jaxgemm::ptx
