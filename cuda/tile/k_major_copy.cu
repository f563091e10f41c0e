#include "k_major_copy.h"
#include "launch.cuh"
#include "ptx/convert.cuh"
#include "ptx/shared_storage.cuh"

namespace jaxgemm {
namespace {

// A CTA moves a square of elements whose rows are 32 words of 32 bits: 32 x 32 blocks of kBlock x kBlock elements. A
// warp moves a row of blocks after the other, a block to a thread.
constexpr uint32_t kTf32Bits = 0xFFFFE000u;  // of a float32 that TF32 has; what cvt leaves in the others is not said
constexpr int kThreads = 256, kWords = 32, kBlocksOfThread = kWords / (kThreads / 32);

// Squares along the operand's rows first.
struct Squares {
  int64_t along_rows, of_matrix;
};

// The words of a block as they lie in memory, of which `rows` rows of `cols` elements exist. What does not is zero.
template <class Element>
__device__ void load_block(uint32_t (&words)[4 / sizeof(Element)], const Element* g_block, int64_t ld, int64_t rows,
                           int64_t cols) {
  constexpr int kBlock = 4 / sizeof(Element);
#pragma unroll
  for (int row = 0; row < kBlock; ++row) {
    words[row] = 0;
    if (row >= rows || cols <= 0) continue;
    const Element* g_row = g_block + row * ld;
    if (cols >= kBlock && reinterpret_cast<uintptr_t>(g_row) % sizeof(uint32_t) == 0) {
      words[row] = *reinterpret_cast<const uint32_t*>(g_row);
    } else {
#pragma unroll
      for (int i = 0; i < kBlock; ++i) {
        if (i < cols) words[row] |= static_cast<uint32_t>(g_row[i]) << i * 8 * static_cast<int>(sizeof(Element));
      }
    }
  }
}

// Rows become columns.
__device__ inline void transpose_block(uint32_t (&)[1]) {}
__device__ inline void transpose_block(uint32_t (&words)[4]) {
  // Bytes of pairs of rows in turn, then pairs of those: the selectors are __byte_perm's.
  const uint32_t low01 = __byte_perm(words[0], words[1], 0x5140), high01 = __byte_perm(words[0], words[1], 0x7362);
  const uint32_t low23 = __byte_perm(words[2], words[3], 0x5140), high23 = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(low01, low23, 0x5410);
  words[1] = __byte_perm(low01, low23, 0x7632);
  words[2] = __byte_perm(high01, high23, 0x5410);
  words[3] = __byte_perm(high01, high23, 0x7632);
}

template <int kBlock>
struct Transposed {
  uint32_t words[kBlock][kWords][kWords + 1];  // [row in its block][block of rows][block of columns], of the copy
};

// Writes a word of row `mn` of the copy, from element k on, or the two parts of a float32.
template <class Element, int kPlanes>
__device__ void store_word(Element* g_copy, const KMajor& shape, int64_t mn, int64_t k, uint32_t word) {
  uint32_t* g_word = reinterpret_cast<uint32_t*>(g_copy + mn * kPlanes * shape.padded_k + k);
  if constexpr (kPlanes == 2) {
    const uint32_t big = ptx::to_tf32(__uint_as_float(word)) & kTf32Bits;
    g_word[0] = big;
    g_word[shape.padded_k] = ptx::to_tf32(__uint_as_float(word) - __uint_as_float(big));
  } else {
    g_word[0] = word;
  }
}

template <class Element, int kPlanes, bool kTransposes>
__global__ void __launch_bounds__(kThreads)
    k_major_copy_kernel(Element* to, const Element* from, KMajor shape, Squares squares) {
  constexpr int kBlock = 4 / sizeof(Element), kSide = kWords * kBlock;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t matrix = blockIdx.x / squares.of_matrix, square = blockIdx.x % squares.of_matrix;
  const int64_t outer = square / squares.along_rows * kSide, inner = square % squares.along_rows * kSide;
  const Element* g_from = from + matrix * shape.from.batch_stride;
  Element* g_to = to + matrix * shape.mn * kPlanes * shape.padded_k;

  if constexpr (!kTransposes) {  // but takes apart
    static_assert(kBlock == 1 && kPlanes == 2);
#pragma unroll
    for (int i = 0; i < kBlocksOfThread; ++i) {
      const int64_t mn = outer + warp + i * (kThreads / 32), k = inner + lane;
      uint32_t words[1];
      load_block(words, g_from + mn * shape.from.ld + k, shape.from.ld, shape.mn - mn, shape.k - k);
      if (mn < shape.mn && k < shape.padded_k) store_word<Element, kPlanes>(g_to, shape, mn, k, words[0]);
    }
  } else {
    auto& s_square = shared_storage<Transposed<kBlock>>().words;
#pragma unroll
    for (int i = 0; i < kBlocksOfThread; ++i) {
      const int row = warp + i * (kThreads / 32);  // of blocks
      const int64_t k = outer + row * kBlock, mn = inner + lane * kBlock;
      uint32_t words[kBlock];
      load_block(words, g_from + k * shape.from.ld + mn, shape.from.ld, shape.k - k, shape.mn - mn);
      transpose_block(words);
#pragma unroll
      for (int j = 0; j < kBlock; ++j) s_square[j][lane][row] = words[j];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kBlocksOfThread; ++i) {
      const int row = warp + i * (kThreads / 32);
      const int64_t k = outer + lane * kBlock;
#pragma unroll
      for (int j = 0; j < kBlock; ++j) {
        const int64_t mn = inner + row * kBlock + j;
        if (mn < shape.mn && k < shape.padded_k)
          store_word<Element, kPlanes>(g_to, shape, mn, k, s_square[j][row][lane]);
      }
    }
  }
}

template <class Element, int kPlanes, bool kTransposes>
std::string launch_copy(void* to, const void* from, const KMajor& shape, void* stream) {
  constexpr int64_t kSide = kWords * 4 / sizeof(Element);
  const auto along = [](int64_t size) { return (size + kSide - 1) / kSide; };
  const int64_t k_squares = along(shape.padded_k), mn_squares = along(shape.mn);
  const Squares squares = {kTransposes ? mn_squares : k_squares, k_squares * mn_squares};
  return launch_kernel(k_major_copy_kernel<Element, kPlanes, kTransposes>, shape.copies * squares.of_matrix, kThreads,
                       kTransposes ? static_cast<int>(sizeof(Transposed<4 / sizeof(Element)>)) : 0, stream,
                       static_cast<Element*>(to), static_cast<const Element*>(from), shape, squares);
}

}  // namespace

std::string k_major_copy(void* to, const void* from, const KMajor& shape, DType dtype, void* stream) {
  if (shape.elements() == 0) return {};
  if (size_bytes(dtype) == 1) return launch_copy<uint8_t, 1, true>(to, from, shape, stream);
  if (shape.planes == 1) return launch_copy<uint32_t, 1, true>(to, from, shape, stream);
  return shape.transposes ? launch_copy<uint32_t, 2, true>(to, from, shape, stream)
                          : launch_copy<uint32_t, 2, false>(to, from, shape, stream);
}

}  // namespace jaxgemm
