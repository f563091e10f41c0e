// Addresses of shared memory as instructions and matrix descriptors hold them: 32 bits within the CTA's shared window.
// PTX ISA, "State Spaces, Types, and Variables", "Shared State Space"; "cvta".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace jaxgemm::ptx {

// Of a pointer into the executing CTA's own shared memory.
__device__ inline uint32_t shared_address(const void* s_pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(s_pointer));
}

}  // namespace jaxgemm::ptx
