// wmma: matrix multiply-accumulate of one warp with opaque fragments, shape m16n16k16, float32 accumulators.
// PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions": "Matrix Fragments for WMMA", "Matrix Storage for
// WMMA", "wmma.load", "wmma.mma", "wmma.store".
//
// Every function is warp-collective: all 32 lanes call it with the same arguments. Which lane holds which element of
// a fragment is the hardware's secret; that is why results leave through memory and not through the fragment.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ptx/wmma_types.cuh"

namespace jaxgemm::wmma {

// The text of one load. asm needs string literals: hence a macro, for this header only. "memory" keeps the load on its
// side of the barriers.
#define JAXGEMM_WMMA_LOAD(operand, order, space, constraint, address)                                                  \
  do {                                                                                                                 \
    auto& r = fragment.regs;                                                                                           \
    if constexpr (std::is_same_v<typename F::Element, __half>) {                                                       \
      asm volatile("wmma.load." operand ".sync.aligned." order ".m16n16k16." space                                     \
                   ".f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                                                  \
                   : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7])    \
                   : constraint(address), "r"(ld)                                                                      \
                   : "memory");                                                                                        \
    } else {                                                                                                           \
      asm volatile("wmma.load." operand ".sync.aligned." order ".m16n16k16." space ".bf16 {%0, %1, %2, %3}, [%4], %5;" \
                   : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                                    \
                   : constraint(address), "r"(ld)                                                                      \
                   : "memory");                                                                                        \
    }                                                                                                                  \
  } while (false)

#define JAXGEMM_WMMA_LOAD_ANY(space, constraint, address)                                     \
  do {                                                                                        \
    if constexpr (F::kOperand == Operand::kA) {                                               \
      if constexpr (F::kColMajor) JAXGEMM_WMMA_LOAD("a", "col", space, constraint, address);  \
      if constexpr (!F::kColMajor) JAXGEMM_WMMA_LOAD("a", "row", space, constraint, address); \
    } else {                                                                                  \
      if constexpr (F::kColMajor) JAXGEMM_WMMA_LOAD("b", "col", space, constraint, address);  \
      if constexpr (!F::kColMajor) JAXGEMM_WMMA_LOAD("b", "row", space, constraint, address); \
    }                                                                                         \
  } while (false)

// Loads the 16 x 16 tile that starts at s_tile in shared memory; rows (columns, if kColMajor) are ld elements apart.
template <class F>
__device__ inline void load_shared(F& fragment, const typename F::Element* s_tile, int ld) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(s_tile));
  JAXGEMM_WMMA_LOAD_ANY("shared", "r", address);
}

// The same from global memory.
template <class F>
__device__ inline void load_global(F& fragment, const typename F::Element* g_tile, int ld) {
  const uint64_t address = __cvta_generic_to_global(g_tile);
  JAXGEMM_WMMA_LOAD_ANY("global", "l", address);
}

#undef JAXGEMM_WMMA_LOAD_ANY
#undef JAXGEMM_WMMA_LOAD

#define JAXGEMM_WMMA_ACCUMULATOR \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])

#define JAXGEMM_WMMA_MMA(a_order, b_order)                                                                            \
  do {                                                                                                                \
    if constexpr (std::is_same_v<T, __half>) {                                                                        \
      asm("wmma.mma.sync.aligned." a_order "." b_order                                                                \
          ".m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11, %12, %13, %14, %15}, "             \
          "{%16, %17, %18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};"                               \
          : JAXGEMM_WMMA_ACCUMULATOR                                                                                  \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(b[0]),        \
            "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]));                             \
    } else {                                                                                                          \
      asm("wmma.mma.sync.aligned." a_order "." b_order                                                                \
          ".m16n16k16.f32.bf16.bf16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, {%12, %13, %14, %15}, " \
          "{%0, %1, %2, %3, %4, %5, %6, %7};"                                                                         \
          : JAXGEMM_WMMA_ACCUMULATOR                                                                                  \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]));                  \
    }                                                                                                                 \
  } while (false)

// accumulator += A * B
template <class T, bool kAColMajor, bool kBColMajor>
__device__ inline void mma(Accumulator& accumulator, const FragmentA<T, kAColMajor>& fragment_a,
                           const FragmentB<T, kBColMajor>& fragment_b) {
  auto& d = accumulator.regs;
  auto& a = fragment_a.regs;
  auto& b = fragment_b.regs;
  if constexpr (kAColMajor && kBColMajor) JAXGEMM_WMMA_MMA("col", "col");
  if constexpr (kAColMajor && !kBColMajor) JAXGEMM_WMMA_MMA("col", "row");
  if constexpr (!kAColMajor && kBColMajor) JAXGEMM_WMMA_MMA("row", "col");
  if constexpr (!kAColMajor && !kBColMajor) JAXGEMM_WMMA_MMA("row", "row");
}

#undef JAXGEMM_WMMA_MMA
#undef JAXGEMM_WMMA_ACCUMULATOR

// Stores the 16 x 16 result row-major to shared memory, rows ld floats apart.
__device__ inline void store_shared(float* s_tile, const Accumulator& accumulator, int ld) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(s_tile));
  auto& d = accumulator.regs;
  asm volatile(
      "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;" ::"r"(address),
      "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]), "f"(d[7]), "r"(ld)
      : "memory");
}

}  // namespace jaxgemm::wmma
