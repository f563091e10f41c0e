// The sums of a part of a tile, where the CTAs that share it are no cluster (tile/cluster_share.cuh): who has not the
// beginning of the tile's K leaves them in the workspace, who has it waits for the others, adds them in the order of K
// to its own and has the tile's. Each CTA leaves one part at most: its first, for what follows begins with a tile.
#pragma once

#include <cstdint>

#include "ptx/global_flag.cuh"
#include "tile/cluster_share.cuh"

namespace jaxgemm {

// In the workspace: what the CTAs leave, by rank, and words that are 0 before the kernel begins.
template <class Config>
class StreamedSums {
  static constexpr int kWarps = Config::kConsumerThreads / kWarpSize;

 public:
  static constexpr int kElements = Config::kCtaTile.m * Config::kCtaTile.n;
  static int64_t words(int64_t ctas) { return 1 + ctas * kWarps; }
  static int64_t bytes(int64_t ctas) {
    return ctas * kElements * static_cast<int64_t>(sizeof(float)) +
           words(ctas) * static_cast<int64_t>(sizeof(unsigned));
  }

  __host__ __device__ StreamedSums(void* workspace, int64_t ctas)
      : sums_(static_cast<float*>(workspace)), words_(reinterpret_cast<unsigned*>(sums_ + ctas * kElements)) {}

  __host__ __device__ unsigned* ticket() const { return words_; }

  // Each warp of consumers by itself: what lies where in its registers is the same in all CTAs.
  template <int kRegisters>
  __device__ void leave(const float (&sums)[kRegisters], int rank) const {
    float4* to = reinterpret_cast<float4*>(part(rank));
#pragma unroll
    for (int i = 0; i < kRegisters; i += 4) {
      to[i / 4 * Config::kConsumerThreads] = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    }
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) ptx::raise_flag(flag(rank));
  }

  // sums += what the CTA of this rank left.
  template <int kRegisters>
  __device__ void add(float (&sums)[kRegisters], int rank) const {
    ptx::wait_for_flag(flag(rank));
    const float4* from = reinterpret_cast<const float4*>(part(rank));
#pragma unroll
    for (int i = 0; i < kRegisters; i += 4) {
      const float4 quad = from[i / 4 * Config::kConsumerThreads];
      sums[i] += quad.x;
      sums[i + 1] += quad.y;
      sums[i + 2] += quad.z;
      sums[i + 3] += quad.w;
    }
  }

 private:
  __device__ float* part(int rank) const { return sums_ + static_cast<int64_t>(rank) * kElements + threadIdx.x * 4; }
  __device__ unsigned* flag(int rank) const { return words_ + 1 + rank * kWarps + threadIdx.x / kWarpSize; }

  float* sums_;
  unsigned* words_;
};

}  // namespace jaxgemm
