// What the two implementations of wmma.cuh share: the fragments, which are opaque, and the rules for addresses.
//
// Alignment. PTX ISA asks that the first element and every row be aligned to the size of a lane's fragment (32 bytes
// for float16, 16 for bfloat16); the CUDA C++ programming guide ("Warp Matrix Functions") asks for 32 bytes at the
// first element and a leading dimension that is a multiple of 8. Shared memory here relies on the guide (rows an odd
// multiple of 16 bytes apart are what keeps the resulting LDSM free of bank conflicts); global memory meets the
// stricter text.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace jaxgemm::wmma {

inline constexpr int kTile = 16;            // M, N and K of one multiplication
inline constexpr int kAlignmentBytes = 32;  // of the first element of a tile in memory
inline constexpr int kGlobalLdElems = 16;   // leading dimensions in global memory are multiples of it

enum class Operand { kA, kB };

// One tile of A (M x K) or B (K x N). The order in which it lay in memory is part of the type, because wmma.mma must be
// told the order that wmma.load was given.
template <Operand kOperandOf, class T, bool kColMajorOf>
struct Fragment {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  using Element = T;
  static constexpr Operand kOperand = kOperandOf;
  static constexpr bool kColMajor = kColMajorOf;
  // float16 has room for the layout of the oldest GPUs, where two lanes hold each element. On sm_80 and later ptxas
  // drops the second copy.
  uint32_t regs[std::is_same_v<T, __half> ? 8 : 4];
};

template <class T, bool kColMajor>
using FragmentA = Fragment<Operand::kA, T, kColMajor>;
template <class T, bool kColMajor>
using FragmentB = Fragment<Operand::kB, T, kColMajor>;

struct Accumulator {
  float regs[8] = {};
};

}  // namespace jaxgemm::wmma
