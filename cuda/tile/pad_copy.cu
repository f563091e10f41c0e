#include <limits>
#include <numeric>

#include "launch.cuh"
#include "pad_copy.h"
#include "shifted_vector.cuh"

namespace jaxgemm {
namespace {

constexpr int kPadCopyThreads = 256;

// Matrices as they lie in memory: `outer` runs of `inner` neighbouring elements.
struct PadCopyShape {
  int64_t from_outer, from_inner, from_ld, from_batch_stride;
  int64_t to_outer, to_inner, to_ld;  // the latter two whole numbers of vectors
  int64_t vectors;                    // of all matrices together
};

// One thread writes one 16-byte vector; neighbouring threads write neighbouring vectors of a run. `Word` stands for any
// element of its size; `Index` holds the number of vectors: 32 bits if possible, as a division of 64 takes longer than
// a copy.
template <class Word, class Index>
__global__ void __launch_bounds__(kPadCopyThreads) pad_copy_kernel(uint4* to, const Word* from, PadCopyShape shape) {
  constexpr int kVectorElems = sizeof(uint4) / sizeof(Word);
  const Index vector = static_cast<Index>(blockIdx.x) * kPadCopyThreads + threadIdx.x;
  if (vector >= static_cast<Index>(shape.vectors)) return;
  const Index vectors_per_run = static_cast<Index>(shape.to_inner / kVectorElems);
  const Index run = vector / vectors_per_run;
  const int64_t inner = static_cast<int64_t>(vector % vectors_per_run) * kVectorElems;
  const int64_t batch = static_cast<int64_t>(run / static_cast<Index>(shape.to_outer));
  const int64_t outer = static_cast<int64_t>(run % static_cast<Index>(shape.to_outer));

  const Word* source = from + batch * shape.from_batch_stride + outer * shape.from_ld + inner;
  const int64_t valid = outer < shape.from_outer ? shape.from_inner - inner : 0;
  const unsigned past = static_cast<unsigned>(reinterpret_cast<uintptr_t>(source) % sizeof(uint4));
  uint4& place = to[static_cast<int64_t>(run) * (shape.to_ld / kVectorElems) + inner / kVectorElems];
  if (past == 0 && valid >= kVectorElems) {
    place = *reinterpret_cast<const uint4*>(source);
    return;
  }
  if (inner > 0 && valid >= 2 * kVectorElems) {  // both vectors that have a part of it lie within the run
    const uint4* vectors = reinterpret_cast<const uint4*>(source - past / sizeof(Word));
    place = shifted(vectors[0], vectors[1], past);
    return;
  }
  alignas(sizeof(uint4)) Word words[kVectorElems];
#pragma unroll
  for (int i = 0; i < kVectorElems; ++i) words[i] = i < valid ? source[i] : Word{0};
  place = *reinterpret_cast<const uint4*>(words);
}

template <class Word>
std::string launch_pad_copy(void* to, const void* from, const PadCopyShape& shape, void* stream) {
  constexpr int64_t kMostIn32Bits = std::numeric_limits<uint32_t>::max() - kPadCopyThreads;  // of the last CTA too
  const auto kernel =
      shape.vectors <= kMostIn32Bits ? pad_copy_kernel<Word, uint32_t> : pad_copy_kernel<Word, uint64_t>;
  return launch_kernel(kernel, (shape.vectors + kPadCopyThreads - 1) / kPadCopyThreads, kPadCopyThreads, 0, stream,
                       static_cast<uint4*>(to), static_cast<const Word*>(from), shape);
}

}  // namespace

std::string pad_copy(void* to, const void* from, const MatrixView& view, const MatrixView& padded, int64_t batch,
                     DType dtype, void* stream) {
  const int64_t copies = padded.batch_stride == 0 ? 1 : batch;
  const int64_t element_bytes = size_bytes(dtype);
  const PadCopyShape shape = {
      .from_outer = view.transposed ? view.cols : view.rows,
      .from_inner = view.transposed ? view.rows : view.cols,
      .from_ld = view.ld,
      .from_batch_stride = view.batch_stride,
      .to_outer = padded.transposed ? padded.cols : padded.rows,
      .to_inner = padded.transposed ? padded.rows : padded.cols,
      .to_ld = padded.ld,
      .vectors = copies * padded.rows * padded.cols * element_bytes / static_cast<int64_t>(sizeof(uint4))};
  if (shape.vectors == 0) return {};
  if (std::gcd(shape.to_inner, shape.to_ld) * element_bytes % static_cast<int64_t>(sizeof(uint4)) != 0) {
    return "pad_copy: rows of " + std::to_string(shape.to_inner) + " " + std::string(name(dtype)) +
           " are no whole vectors";
  }
  switch (element_bytes) {
    case sizeof(uint8_t): return launch_pad_copy<uint8_t>(to, from, shape, stream);
    case sizeof(uint16_t): return launch_pad_copy<uint16_t>(to, from, shape, stream);
    default: return launch_pad_copy<uint32_t>(to, from, shape, stream);
  }
}

}  // namespace jaxgemm
