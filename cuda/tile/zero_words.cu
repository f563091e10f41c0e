#include "launch.cuh"
#include "zero_words.h"

namespace jaxgemm {
namespace {

constexpr int kZeroThreads = 256;

__global__ void __launch_bounds__(kZeroThreads) zero_words_kernel(unsigned* words, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kZeroThreads + threadIdx.x;
  if (i < count) words[i] = 0;
}

}  // namespace

std::string zero_words(unsigned* words, int64_t count, void* stream) {
  return launch_kernel(zero_words_kernel, (count + kZeroThreads - 1) / kZeroThreads, kZeroThreads, 0, stream, words,
                       count);
}

}  // namespace jaxgemm
