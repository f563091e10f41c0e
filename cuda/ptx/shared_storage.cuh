// The CTA's dynamic shared memory. It is found here, and not by `extern __shared__` in the kernels, so that the
// emulator can give each CTA memory of its own.
#pragma once

namespace jaxgemm {

// What describe<Config>() sized for one SharedStorage. Aligned for the widest swizzle pattern of TMA and wgmma, which
// repeats every 1024 bytes (PTX ISA, "Tensor Swizzling Modes").
template <class SharedStorage>
__device__ SharedStorage& shared_storage() {
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  static_assert(alignof(SharedStorage) <= 1024);
  return *reinterpret_cast<SharedStorage*>(smem_bytes);
}

}  // namespace jaxgemm
