#include "launch.cuh"
#include "pad_copy.h"

namespace jaxgemm {
namespace {

constexpr int kPadCopyThreads = 256;

// Matrices as they lie in memory: `outer` runs of `inner` neighbouring elements.
struct PadCopyShape {
  int64_t from_outer, from_inner, from_ld, from_batch_stride;
  int64_t to_outer, to_inner;  // dense, to_inner a whole number of vectors
  int64_t vectors;             // of all matrices together
};

// One thread writes one 16-byte vector; neighbouring threads write neighbouring vectors. `Word` stands for any element
// of its size.
template <class Word>
__global__ void __launch_bounds__(kPadCopyThreads)
    pad_copy_kernel(uint4* to, const Word* from, PadCopyShape shape, bool from_vectors) {
  constexpr int kVectorElems = sizeof(uint4) / sizeof(Word);
  const uint64_t vector = static_cast<uint64_t>(blockIdx.x) * kPadCopyThreads + threadIdx.x;
  if (vector >= static_cast<uint64_t>(shape.vectors)) return;
  const uint64_t vectors_per_run = static_cast<uint64_t>(shape.to_inner) / kVectorElems;
  const uint64_t run = vector / vectors_per_run;
  const int64_t inner = static_cast<int64_t>(vector % vectors_per_run) * kVectorElems;
  const int64_t batch = static_cast<int64_t>(run / static_cast<uint64_t>(shape.to_outer));
  const int64_t outer = static_cast<int64_t>(run % static_cast<uint64_t>(shape.to_outer));

  const Word* source = from + batch * shape.from_batch_stride + outer * shape.from_ld + inner;
  const int64_t valid = outer < shape.from_outer ? shape.from_inner - inner : 0;
  if (from_vectors && valid >= kVectorElems) {
    to[vector] = *reinterpret_cast<const uint4*>(source);
    return;
  }
  alignas(sizeof(uint4)) Word words[kVectorElems];
#pragma unroll
  for (int i = 0; i < kVectorElems; ++i) words[i] = i < valid ? source[i] : Word{0};
  to[vector] = *reinterpret_cast<const uint4*>(words);
}

template <class Word>
std::string launch_pad_copy(void* to, const void* from, const PadCopyShape& shape, void* stream) {
  constexpr int kVectorElems = sizeof(uint4) / sizeof(Word);
  const bool from_vectors = reinterpret_cast<uintptr_t>(from) % sizeof(uint4) == 0 &&
                            shape.from_ld % kVectorElems == 0 && shape.from_batch_stride % kVectorElems == 0;
  return launch_kernel(pad_copy_kernel<Word>, (shape.vectors + kPadCopyThreads - 1) / kPadCopyThreads, kPadCopyThreads,
                       0, stream, static_cast<uint4*>(to), static_cast<const Word*>(from), shape, from_vectors);
}

}  // namespace

std::string pad_copy(void* to, const void* from, const MatrixView& view, int64_t multiple, int64_t batch, DType dtype,
                     void* stream) {
  const MatrixView padded = padded_view(view, multiple);
  const int64_t copies = padded.batch_stride == 0 ? 1 : batch;
  const int64_t element_bytes = size_bytes(dtype);
  const PadCopyShape shape = {
      .from_outer = view.transposed ? view.cols : view.rows,
      .from_inner = view.transposed ? view.rows : view.cols,
      .from_ld = view.ld,
      .from_batch_stride = view.batch_stride,
      .to_outer = padded.transposed ? padded.cols : padded.rows,
      .to_inner = padded.ld,
      .vectors = copies * padded.rows * padded.cols * element_bytes / static_cast<int64_t>(sizeof(uint4))};
  if (shape.vectors == 0) return {};
  if (padded.ld * element_bytes % static_cast<int64_t>(sizeof(uint4)) != 0) {
    return "pad_copy: rows of " + std::to_string(padded.ld) + " " + std::string(name(dtype)) + " are no whole vectors";
  }
  switch (element_bytes) {
    case sizeof(uint8_t): return launch_pad_copy<uint8_t>(to, from, shape, stream);
    case sizeof(uint16_t): return launch_pad_copy<uint16_t>(to, from, shape, stream);
    default: return launch_pad_copy<uint32_t>(to, from, shape, stream);
  }
}

}  // namespace jaxgemm
