// stmatrix: a warp stores 8 x 8 matrices of 16-bit elements from the layout of mma fragments to shared memory; the
// inverse of ldmatrix. From sm_90 on.
// PTX ISA, "Warp Level Matrix Store Instruction: stmatrix".
#pragma once

#include <cstdint>

#include "ptx/address.cuh"

namespace jaxgemm::ptx {

// Stores N (1, 2 or 4) matrices. Lane 8 * i + j gives the address of row j of matrix i: 16 contiguous bytes, aligned to
// 16. The addresses of lanes from 8 * N on are ignored. What r[i] holds is what ldmatrix<kTranspose> puts there.
template <bool kTranspose, int N>
__device__ inline void stmatrix(void* s_row, const uint32_t (&r)[N]) {
  static_assert(N == 1 || N == 2 || N == 4);
  const uint32_t address = shared_address(s_row);
  if constexpr (N == 1 && !kTranspose) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(address), "r"(r[0]) : "memory");
  } else if constexpr (N == 1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(address), "r"(r[0]) : "memory");
  } else if constexpr (N == 2 && !kTranspose) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r[0]), "r"(r[1])
                 : "memory");
  } else if constexpr (N == 2) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r[0]), "r"(r[1])
                 : "memory");
  } else if constexpr (!kTranspose) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
  }
}

}  // namespace jaxgemm::ptx
