// Registers move from one warpgroup to another. PTX ISA, "setmaxnreg".
//
// All four warps of a warpgroup execute the same one, converged, in a branch that the whole warpgroup takes. It has an
// effect only in a kernel whose registers per thread are capped at entry, by __launch_bounds__(threads, 1) for instance
// (otherwise ptxas says "C7508 setmaxnreg ignored").
#pragma once

#include "ptx/registers_types.cuh"

namespace jaxgemm::ptx {

// From now on the warpgroup has at most kRegisters per thread, and gives the rest back.
template <int kRegisters>
__device__ inline void register_dealloc() {
  static_assert(kIsRegisterCount<kRegisters>);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Waits until that many have been given back.
template <int kRegisters>
__device__ inline void register_alloc() {
  static_assert(kIsRegisterCount<kRegisters>);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace jaxgemm::ptx
