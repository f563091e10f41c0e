// What wgmma's operands are to the kernels and to the emulator: their types, matrix descriptors of tiles in shared
// memory, and which thread holds what.
// PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions": "Shared Memory Matrix Layout",
// "Strides", "Matrix Descriptor Format".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "ptx/mma_types.cuh"

namespace jaxgemm::ptx {

// Which 16-byte chunks of shared memory change places, so that chunks of one column lie in different banks: within a
// span of 32, 64 or 128 bytes, chunk c goes to c ^ ((address / 128) % (span / 16)). The values are the descriptor's.
enum class Swizzle : uint8_t { kNone = 0, k128B = 1, k64B = 2, k32B = 3 };

inline constexpr int kChunkBytes = 16;  // what a swizzle moves as a whole

// A row of the tile in shared memory: what lies side by side before the next row begins.
__host__ __device__ constexpr int span_bytes(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::k128B: return 128;
    case Swizzle::k64B: return 64;
    case Swizzle::k32B: return 32;
    case Swizzle::kNone: break;
  }
  return kChunkBytes;
}

// Where the byte at this address of the unswizzled tile lies: the same function for who writes and who reads. Addresses
// are those of the shared window, and tiles start at multiples of eight spans.
__host__ __device__ constexpr uint32_t swizzled(Swizzle swizzle, uint32_t address) {
  const uint32_t chunks = static_cast<uint32_t>(span_bytes(swizzle)) / kChunkBytes;
  return address ^ ((address >> 7) & (chunks - 1)) << 4;
}

// Which dimension is contiguous in shared memory: kK, or, of 16-bit elements only, either. The values are wgmma's
// imm-trans-a and imm-trans-b.
enum class Major : uint8_t { kK = 0, kMN = 1 };

// A descriptor's fields. With a span of S bytes, eight rows of S bytes are an atom. A kK layout counts K in bytes, so
// that it is the same for all types; a kMN layout is one of 16-bit elements.
//   Major  Swizzle  an atom holds           leading_bytes                  stride_bytes
//   kK     none     8 MN x 16 bytes of K    next 16 bytes of K             next 8 MN
//   kK     else     8 MN x S bytes of K     unused: write 16               next 8 MN
//   kMN    none     8 MN x 8 K              next 8 K                       next 8 MN
//   kMN    else     S/2 MN x 8 K            next S/2 MN                    next 8 K
// In an atom the contiguous dimension runs along the rows.
struct MatrixLayout {
  uint32_t leading_bytes, stride_bytes;
  Swizzle swizzle;
};

// The bits of a field that holds bytes: 14, in units of 16 bytes.
__host__ __device__ constexpr uint64_t descriptor_field(uint32_t bytes) { return (bytes & 0x3FFFF) >> 4; }

inline constexpr int kDescriptorLeadingBit = 16, kDescriptorStrideBit = 32, kDescriptorBaseOffsetBit = 49,
                     kDescriptorSwizzleBit = 62;

// Of the tile that starts at `address` (see shared_address()); the atoms that it is made of start at multiples of eight
// spans. A tile may start within an atom, along its rows: the next kWgmmaK elements of a kK tile are kWgmmaStepBytes
// further.
__host__ __device__ constexpr uint64_t matrix_descriptor(uint32_t address, MatrixLayout layout) {
  return descriptor_field(address) | descriptor_field(layout.leading_bytes) << kDescriptorLeadingBit |
         descriptor_field(layout.stride_bytes) << kDescriptorStrideBit |
         static_cast<uint64_t>(layout.swizzle) << kDescriptorSwizzleBit;
}

// Adding to a descriptor moves its start: no carry leaves the field, since shared memory ends before it does.
__host__ __device__ constexpr uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWgmmaM = 64;
inline constexpr int kWgmmaStepBytes = 32;  // along K, of one instruction

// Elements of operands are __half, __nv_bfloat16, float (which wgmma reads as tf32), int8_t, E4m3 and E5m2.
template <class A>
inline constexpr int kWgmmaK = kWgmmaStepBytes / static_cast<int>(sizeof(A));

template <class A>
using WgmmaSum = std::conditional_t<std::is_same_v<A, int8_t>, int32_t, float>;

template <class A>
inline constexpr bool kIsWgmmaElement = std::is_same_v<A, __half> || std::is_same_v<A, __nv_bfloat16> ||
                                        std::is_same_v<A, float> || std::is_same_v<A, int8_t> || kIsFp8<A>;

// The widths that wgmma() is instantiated for, which there are for all types. Floating point has all multiples of 8.
template <int kN>
inline constexpr bool kIsWgmmaN = kN == 8 || (kN >= 16 && kN <= 256 && kN % 16 == 0);

// Whether there is a wgmma() of these elements and this width, with operands in shared memory that lie so.
template <class A, class B, int kN, Major... kMajors>
inline constexpr bool kIsWgmma =
    kIsWgmmaN<kN> && kIsWgmmaElement<A> && (std::is_same_v<A, B> || (kIsFp8<A> && kIsFp8<B>)) &&
    (sizeof(A) == 2 || ((kMajors == Major::kK) && ...));

// The accumulator D (64 x N) and the fragment of A (64 x kWgmmaK) lie in the registers of 128 threads. PTX ISA,
// "Register Fragments and Shared Memory Matrix Layouts", "Matrix Fragments for wgmma.mma_async.m64nNk16", "...k8" and
// "...k32".
struct ElementOf {
  int row, col;
};

// Of accumulator i of `thread` of the warpgroup.
__host__ __device__ constexpr ElementOf accumulator_element(int thread, int i) {
  return {thread / 32 * 16 + i / 2 % 2 * 8 + thread % 32 / 4, i / 4 * 8 + thread % 4 * 2 + i % 2};
}

// Of part (0: the lowest bits) of register i of A's fragment. The parts of a register follow each other along K.
__host__ __device__ constexpr ElementOf fragment_a_element(int element_bytes, int thread, int i, int part) {
  const int parts = 4 / element_bytes;
  return {thread / 32 * 16 + i % 2 * 8 + thread % 32 / 4, (i / 2 * 4 + thread % 4) * parts + part};
}

}  // namespace jaxgemm::ptx
