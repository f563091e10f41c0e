// A run of neighbouring elements of out that begins at any element. It is put together in shared memory as far from a
// multiple of 16 bytes as it lies in out, and goes out in whole vectors but for its two ends.
#pragma once

#include <cstdint>

namespace jaxgemm {

template <class Out>
class OutRun {
 public:
  static constexpr int kVectorBytes = 16, kElems = kVectorBytes / static_cast<int>(sizeof(Out));
  // What a run of so many elements takes of shared memory, which begins at a multiple of a vector.
  static constexpr int bytes(int elements) { return elements * static_cast<int>(sizeof(Out)) + kVectorBytes; }

  __device__ explicit OutRun(Out* g_first)
      : g_first_(g_first),
        first_(static_cast<int>(reinterpret_cast<uintptr_t>(g_first) % kVectorBytes / sizeof(Out))) {}

  // Where its first element is to be laid down.
  __device__ Out* staged(char* s_bytes) const { return reinterpret_cast<Out*>(s_bytes) + first_; }

  // Writes the first `count` elements of what all of kThreads threads have laid down.
  template <int kThreads>
  __device__ void write(const Out* s_first, int thread, int count) const {
    const int to_vector = (kElems - first_) % kElems, head = to_vector < count ? to_vector : count;
    const int vectors = (count - head) / kElems, tail = head + vectors * kElems + thread;
    const auto* s_vectors = reinterpret_cast<const uint4*>(s_first + head);
    auto* g_vectors = reinterpret_cast<uint4*>(g_first_ + head);
#pragma unroll 4
    for (int i = thread; i < vectors; i += kThreads) g_vectors[i] = s_vectors[i];
    if (thread < head) g_first_[thread] = s_first[thread];
    if (tail < count) g_first_[tail] = s_first[tail];
  }

 private:
  Out* g_first_;
  int first_;  // elements that it lies behind a multiple of a vector
};

}  // namespace jaxgemm
