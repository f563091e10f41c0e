// Which lane of a warp holds which element of an mma.sync fragment.
// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", "Matrix Fragments for mma.m16n8k8", "Matrix
// Fragments for mma.m16n8k32".
//
// All the shapes that ptx/mma.cuh offers follow one rule: a 32-bit register holds kElems neighbours along K (1 of tf32,
// 2 of 16 bits, 4 of 8 bits), and K is 8 * kElems. Elements are counted through the registers, lowest bits first.
#pragma once

#include <cuda_runtime.h>

namespace jaxgemm::fragment {

struct Coord {
  int row, col;
};

inline constexpr int kM = 16, kN = 8;

template <int kElems>
inline constexpr int kK = 8 * kElems;

// Element i (of 4 * kElems) of a, at (row, col) of the 16 x K matrix.
template <int kElems>
__host__ __device__ constexpr Coord a(int lane, int i) {
  const int reg = i / kElems;
  return {lane / 4 + reg % 2 * 8, reg / 2 * 4 * kElems + lane % 4 * kElems + i % kElems};
}

// Element i (of 2 * kElems) of b, at (row, col) of the K x 8 matrix.
template <int kElems>
__host__ __device__ constexpr Coord b(int lane, int i) {
  return {i / kElems * 4 * kElems + lane % 4 * kElems + i % kElems, lane / 4};
}

// Element i (of 4) of the accumulators, at (row, col) of the 16 x 8 matrix.
__host__ __device__ constexpr Coord d(int lane, int i) { return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2}; }

// Which row of an operand's fragments one after the other is row g of the slot-th 8: as they come (kGroup 1), or such
// that kGroup slots of one g are neighbours.
template <int kGroup>
__host__ __device__ constexpr int dealt(int slot, int g) {
  return slot / kGroup * kGroup * 8 + g * kGroup + slot % kGroup;
}

}  // namespace jaxgemm::fragment
