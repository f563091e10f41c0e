// wgmma: matrix multiply-accumulate of one warpgroup, asynchronous, D (64 x N) += A (64 x K) * B (K x N), where 32
// bytes hold K elements. D is int32 for int8 operands, else float32. PTX ISA, "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions": "wgmma.mma_async", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group".
//
// All 128 threads of a warpgroup (whose first warp's index is a multiple of four) call these functions together:
//   wgmma_fence();           orders earlier accesses to the registers of D (and A) before the multiplications
//   wgmma<...>(...);         any number of them; those on one D are in order
//   wgmma_commit();
//   wgmma_wait<kPending>();  until at most kPending of the last groups are not complete
// In between, D and A's registers belong to the tensor cores, and the tiles in shared memory must not change. Tiles
// that ordinary stores wrote need fence_proxy_async() before the barrier that precedes wgmma().
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "ptx/wgmma_types.cuh"

namespace jaxgemm::ptx {

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// The compiler does not know that this ends the writing to D: pin_registers() keeps reads of D behind it.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// What of the instruction's text the operands' types decide: asm puts it in, with the constraint "C". K and the types
// of D, A and B:
template <class A, class B>
struct WgmmaTypes;
template <>
struct WgmmaTypes<__half, __half> {
  static constexpr char kText[] = "k16.f32.f16.f16";
};
template <>
struct WgmmaTypes<__nv_bfloat16, __nv_bfloat16> {
  static constexpr char kText[] = "k16.f32.bf16.bf16";
};
template <>
struct WgmmaTypes<float, float> {
  static constexpr char kText[] = "k8.f32.tf32.tf32";
};
template <>
struct WgmmaTypes<int8_t, int8_t> {
  static constexpr char kText[] = "k32.s32.s8.s8";
};
template <>
struct WgmmaTypes<E4m3, E4m3> {
  static constexpr char kText[] = "k32.f32.e4m3.e4m3";
};
template <>
struct WgmmaTypes<E4m3, E5m2> {
  static constexpr char kText[] = "k32.f32.e4m3.e5m2";
};
template <>
struct WgmmaTypes<E5m2, E4m3> {
  static constexpr char kText[] = "k32.f32.e5m2.e4m3";
};
template <>
struct WgmmaTypes<E5m2, E5m2> {
  static constexpr char kText[] = "k32.f32.e5m2.e5m2";
};

// The immediates at its end: imm-scale-a and imm-scale-b, which integers lack, then imm-trans-a and imm-trans-b of what
// lies in shared memory, which 16-bit elements alone have.
template <class A, Major... kMajors>
struct WgmmaImmediates {
  static constexpr char kText[] = ",1,1";
};
template <Major... kMajors>
struct WgmmaImmediates<int8_t, kMajors...> {
  static constexpr char kText[] = "";
};
template <class A, Major kMajorB>
  requires(sizeof(A) == 2)
struct WgmmaImmediates<A, kMajorB> {
  static constexpr char kText[] = {',', '1', ',', '1', ',', '0' + static_cast<char>(kMajorB), '\0'};
};
template <class A, Major kMajorA, Major kMajorB>
  requires(sizeof(A) == 2)
struct WgmmaImmediates<A, kMajorA, kMajorB> {
  static constexpr char kText[] = {
      ',', '1', ',', '1', ',', '0' + static_cast<char>(kMajorA), ',', '0' + static_cast<char>(kMajorB), '\0'};
};

// asm needs string literals and one operand per register. For R = N / 2 accumulators, DR is the text that names them,
// "%0, ..., %{R-1}", and OR(c) are the operands, of constraint c; each continues the one before. These macros are for
// this header only.
#define JAXGEMM_WGMMA_TEXT(a, b, c, e, f, g, h, i) \
  ", %" #a ", %" #b ", %" #c ", %" #e ", %" #f ", %" #g ", %" #h ", %" #i
#define JAXGEMM_WGMMA_FOUR(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define JAXGEMM_WGMMA_EIGHT(c, i) JAXGEMM_WGMMA_FOUR(c, i), JAXGEMM_WGMMA_FOUR(c, i + 4)
#define JAXGEMM_WGMMA_D4 "%0, %1, %2, %3"
#define JAXGEMM_WGMMA_D8 JAXGEMM_WGMMA_D4 ", %4, %5, %6, %7"
#define JAXGEMM_WGMMA_D16 JAXGEMM_WGMMA_D8 JAXGEMM_WGMMA_TEXT(8, 9, 10, 11, 12, 13, 14, 15)
#define JAXGEMM_WGMMA_D24 JAXGEMM_WGMMA_D16 JAXGEMM_WGMMA_TEXT(16, 17, 18, 19, 20, 21, 22, 23)
#define JAXGEMM_WGMMA_D32 JAXGEMM_WGMMA_D24 JAXGEMM_WGMMA_TEXT(24, 25, 26, 27, 28, 29, 30, 31)
#define JAXGEMM_WGMMA_D40 JAXGEMM_WGMMA_D32 JAXGEMM_WGMMA_TEXT(32, 33, 34, 35, 36, 37, 38, 39)
#define JAXGEMM_WGMMA_D48 JAXGEMM_WGMMA_D40 JAXGEMM_WGMMA_TEXT(40, 41, 42, 43, 44, 45, 46, 47)
#define JAXGEMM_WGMMA_D56 JAXGEMM_WGMMA_D48 JAXGEMM_WGMMA_TEXT(48, 49, 50, 51, 52, 53, 54, 55)
#define JAXGEMM_WGMMA_D64 JAXGEMM_WGMMA_D56 JAXGEMM_WGMMA_TEXT(56, 57, 58, 59, 60, 61, 62, 63)
#define JAXGEMM_WGMMA_D72 JAXGEMM_WGMMA_D64 JAXGEMM_WGMMA_TEXT(64, 65, 66, 67, 68, 69, 70, 71)
#define JAXGEMM_WGMMA_D80 JAXGEMM_WGMMA_D72 JAXGEMM_WGMMA_TEXT(72, 73, 74, 75, 76, 77, 78, 79)
#define JAXGEMM_WGMMA_D88 JAXGEMM_WGMMA_D80 JAXGEMM_WGMMA_TEXT(80, 81, 82, 83, 84, 85, 86, 87)
#define JAXGEMM_WGMMA_D96 JAXGEMM_WGMMA_D88 JAXGEMM_WGMMA_TEXT(88, 89, 90, 91, 92, 93, 94, 95)
#define JAXGEMM_WGMMA_D104 JAXGEMM_WGMMA_D96 JAXGEMM_WGMMA_TEXT(96, 97, 98, 99, 100, 101, 102, 103)
#define JAXGEMM_WGMMA_D112 JAXGEMM_WGMMA_D104 JAXGEMM_WGMMA_TEXT(104, 105, 106, 107, 108, 109, 110, 111)
#define JAXGEMM_WGMMA_D120 JAXGEMM_WGMMA_D112 JAXGEMM_WGMMA_TEXT(112, 113, 114, 115, 116, 117, 118, 119)
#define JAXGEMM_WGMMA_D128 JAXGEMM_WGMMA_D120 JAXGEMM_WGMMA_TEXT(120, 121, 122, 123, 124, 125, 126, 127)
#define JAXGEMM_WGMMA_O4(c) JAXGEMM_WGMMA_FOUR(c, 0)
#define JAXGEMM_WGMMA_O8(c) JAXGEMM_WGMMA_EIGHT(c, 0)
#define JAXGEMM_WGMMA_O16(c) JAXGEMM_WGMMA_O8(c), JAXGEMM_WGMMA_EIGHT(c, 8)
#define JAXGEMM_WGMMA_O24(c) JAXGEMM_WGMMA_O16(c), JAXGEMM_WGMMA_EIGHT(c, 16)
#define JAXGEMM_WGMMA_O32(c) JAXGEMM_WGMMA_O24(c), JAXGEMM_WGMMA_EIGHT(c, 24)
#define JAXGEMM_WGMMA_O40(c) JAXGEMM_WGMMA_O32(c), JAXGEMM_WGMMA_EIGHT(c, 32)
#define JAXGEMM_WGMMA_O48(c) JAXGEMM_WGMMA_O40(c), JAXGEMM_WGMMA_EIGHT(c, 40)
#define JAXGEMM_WGMMA_O56(c) JAXGEMM_WGMMA_O48(c), JAXGEMM_WGMMA_EIGHT(c, 48)
#define JAXGEMM_WGMMA_O64(c) JAXGEMM_WGMMA_O56(c), JAXGEMM_WGMMA_EIGHT(c, 56)
#define JAXGEMM_WGMMA_O72(c) JAXGEMM_WGMMA_O64(c), JAXGEMM_WGMMA_EIGHT(c, 64)
#define JAXGEMM_WGMMA_O80(c) JAXGEMM_WGMMA_O72(c), JAXGEMM_WGMMA_EIGHT(c, 72)
#define JAXGEMM_WGMMA_O88(c) JAXGEMM_WGMMA_O80(c), JAXGEMM_WGMMA_EIGHT(c, 80)
#define JAXGEMM_WGMMA_O96(c) JAXGEMM_WGMMA_O88(c), JAXGEMM_WGMMA_EIGHT(c, 88)
#define JAXGEMM_WGMMA_O104(c) JAXGEMM_WGMMA_O96(c), JAXGEMM_WGMMA_EIGHT(c, 96)
#define JAXGEMM_WGMMA_O112(c) JAXGEMM_WGMMA_O104(c), JAXGEMM_WGMMA_EIGHT(c, 104)
#define JAXGEMM_WGMMA_O120(c) JAXGEMM_WGMMA_O112(c), JAXGEMM_WGMMA_EIGHT(c, 112)
#define JAXGEMM_WGMMA_O128(c) JAXGEMM_WGMMA_O120(c), JAXGEMM_WGMMA_EIGHT(c, 120)

// Every N there is: X(N, R, then the numbers of the operands behind the accumulators, R to R + 7).
#define JAXGEMM_WGMMA_SHAPES(X)                       \
  X(8, 4, 4, 5, 6, 7, 8, 9, 10, 11)                   \
  X(16, 8, 8, 9, 10, 11, 12, 13, 14, 15)              \
  X(32, 16, 16, 17, 18, 19, 20, 21, 22, 23)           \
  X(48, 24, 24, 25, 26, 27, 28, 29, 30, 31)           \
  X(64, 32, 32, 33, 34, 35, 36, 37, 38, 39)           \
  X(80, 40, 40, 41, 42, 43, 44, 45, 46, 47)           \
  X(96, 48, 48, 49, 50, 51, 52, 53, 54, 55)           \
  X(112, 56, 56, 57, 58, 59, 60, 61, 62, 63)          \
  X(128, 64, 64, 65, 66, 67, 68, 69, 70, 71)          \
  X(144, 72, 72, 73, 74, 75, 76, 77, 78, 79)          \
  X(160, 80, 80, 81, 82, 83, 84, 85, 86, 87)          \
  X(176, 88, 88, 89, 90, 91, 92, 93, 94, 95)          \
  X(192, 96, 96, 97, 98, 99, 100, 101, 102, 103)      \
  X(208, 104, 104, 105, 106, 107, 108, 109, 110, 111) \
  X(224, 112, 112, 113, 114, 115, 116, 117, 118, 119) \
  X(240, 120, 120, 121, 122, 123, 124, 125, 126, 127) \
  X(256, 128, 128, 129, 130, 131, 132, 133, 134, 135)

#define JAXGEMM_WGMMA_OPEN(N, scale, types) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" #scale ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "%" #types " {"
#define JAXGEMM_WGMMA_CASE(form, N, ...)                                                            \
  if constexpr (kN == N) {                                                                          \
    if constexpr (std::is_same_v<WgmmaSum<A>, float>) JAXGEMM_WGMMA_##form("+f", N, __VA_ARGS__);   \
    if constexpr (std::is_same_v<WgmmaSum<A>, int32_t>) JAXGEMM_WGMMA_##form("+r", N, __VA_ARGS__); \
  }

// Both operands in shared memory.
#define JAXGEMM_WGMMA_SS(c, N, R, a, b, scale, types, immediates, ...)                                             \
  asm volatile(JAXGEMM_WGMMA_OPEN(N, scale, types) JAXGEMM_WGMMA_D##R "}, %" #a ", %" #b ", p%" #immediates ";\n}" \
               : JAXGEMM_WGMMA_O##R(c)                                                                             \
               : "l"(descriptor_a), "l"(descriptor_b), "r"(scale_d), "C"(Types::kText), "C"(Immediates::kText))
#define JAXGEMM_WGMMA_SS_CASE(...) JAXGEMM_WGMMA_CASE(SS, __VA_ARGS__)

// A in registers.
#define JAXGEMM_WGMMA_RS(c, N, R, a0, a1, a2, a3, b, scale, types, immediates)                                   \
  asm volatile(JAXGEMM_WGMMA_OPEN(N, scale, types) JAXGEMM_WGMMA_D##R "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3  \
                                                                      "}, %" #b ", p%" #immediates ";\n}"        \
               : JAXGEMM_WGMMA_O##R(c)                                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor_b), "r"(scale_d), "C"(Types::kText), \
                 "C"(Immediates::kText))
#define JAXGEMM_WGMMA_RS_CASE(...) JAXGEMM_WGMMA_CASE(RS, __VA_ARGS__)

// D = A * B + (scale_d != 0 ? D : 0), where accumulator_element() says which element of D d[i] is. A and B are of one
// type, or E4m3 and E5m2 in any combination.
template <class A, class B, int kN, Major kMajorA, Major kMajorB>
__device__ inline void wgmma(WgmmaSum<A> (&d)[kN / 2], uint64_t descriptor_a, uint64_t descriptor_b, int scale_d) {
  static_assert(kIsWgmma<A, B, kN, kMajorA, kMajorB>);
  using Types = WgmmaTypes<A, B>;
  using Immediates = WgmmaImmediates<A, kMajorA, kMajorB>;
  JAXGEMM_WGMMA_SHAPES(JAXGEMM_WGMMA_SS_CASE)
}

// The same with A in registers, as many elements in each as it holds: fragment_a_element() says which.
template <class A, class B, int kN, Major kMajorB>
__device__ inline void wgmma(WgmmaSum<A> (&d)[kN / 2], const uint32_t (&a)[4], uint64_t descriptor_b, int scale_d) {
  static_assert(kIsWgmma<A, B, kN, kMajorB>);
  using Types = WgmmaTypes<A, B>;
  using Immediates = WgmmaImmediates<A, kMajorB>;
  JAXGEMM_WGMMA_SHAPES(JAXGEMM_WGMMA_RS_CASE)
}

#undef JAXGEMM_WGMMA_RS_CASE
#undef JAXGEMM_WGMMA_RS
#undef JAXGEMM_WGMMA_SS_CASE
#undef JAXGEMM_WGMMA_SS
#undef JAXGEMM_WGMMA_CASE
#undef JAXGEMM_WGMMA_OPEN
#undef JAXGEMM_WGMMA_SHAPES
#undef JAXGEMM_WGMMA_O128
#undef JAXGEMM_WGMMA_O120
#undef JAXGEMM_WGMMA_O112
#undef JAXGEMM_WGMMA_O104
#undef JAXGEMM_WGMMA_O96
#undef JAXGEMM_WGMMA_O88
#undef JAXGEMM_WGMMA_O80
#undef JAXGEMM_WGMMA_O72
#undef JAXGEMM_WGMMA_O64
#undef JAXGEMM_WGMMA_O56
#undef JAXGEMM_WGMMA_O48
#undef JAXGEMM_WGMMA_O40
#undef JAXGEMM_WGMMA_O32
#undef JAXGEMM_WGMMA_O24
#undef JAXGEMM_WGMMA_O16
#undef JAXGEMM_WGMMA_O8
#undef JAXGEMM_WGMMA_O4
#undef JAXGEMM_WGMMA_D128
#undef JAXGEMM_WGMMA_D120
#undef JAXGEMM_WGMMA_D112
#undef JAXGEMM_WGMMA_D104
#undef JAXGEMM_WGMMA_D96
#undef JAXGEMM_WGMMA_D88
#undef JAXGEMM_WGMMA_D80
#undef JAXGEMM_WGMMA_D72
#undef JAXGEMM_WGMMA_D64
#undef JAXGEMM_WGMMA_D56
#undef JAXGEMM_WGMMA_D48
#undef JAXGEMM_WGMMA_D40
#undef JAXGEMM_WGMMA_D32
#undef JAXGEMM_WGMMA_D24
#undef JAXGEMM_WGMMA_D16
#undef JAXGEMM_WGMMA_D8
#undef JAXGEMM_WGMMA_D4
#undef JAXGEMM_WGMMA_EIGHT
#undef JAXGEMM_WGMMA_FOUR
#undef JAXGEMM_WGMMA_TEXT

}  // namespace jaxgemm::ptx
