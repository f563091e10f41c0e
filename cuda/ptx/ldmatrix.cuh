// ldmatrix: a warp loads 8 x 8 matrices of 16-bit elements from shared memory into the layout of mma fragments.
// PTX ISA, "Warp Level Matrix Load Instruction: ldmatrix".
#pragma once

#include <cstdint>

#include "ptx/address.cuh"

namespace jaxgemm::ptx {

// Loads N (1, 2 or 4) matrices. Lane 8 * i + j gives the address of row j of matrix i: 16 contiguous bytes, aligned to
// 16. The addresses of lanes from 8 * N on are ignored.
//
// r[i] then holds two neighbouring elements of matrix i: those at row lane / 4, columns lane % 4 * 2 and the next, or,
// if kTranspose, those at column lane / 4, rows lane % 4 * 2 and the next. The first one is in the low half.
template <bool kTranspose, int N>
__device__ inline void ldmatrix(uint32_t (&r)[N], const void* s_row) {
  static_assert(N == 1 || N == 2 || N == 4);
  const uint32_t address = shared_address(s_row);
  if constexpr (N == 1 && !kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address) : "memory");
  } else if constexpr (N == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address) : "memory");
  } else if constexpr (N == 2 && !kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
  } else if constexpr (N == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
  } else if constexpr (!kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
}

}  // namespace jaxgemm::ptx
