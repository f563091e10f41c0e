// The sums of a tile whose K warpgroups of one CTA share, k-tile by k-tile in turns: the first sharer's get those that
// the others leave in shared memory, in the order of the sharers.
#pragma once

#include "ptx/barrier.cuh"

namespace jaxgemm {

// Each sharer is kThreads threads; a thread has kQuads times four registers of sums. Named barriers: kLeft, the others
// have left theirs; kTaken, the first one has read those of the tile before.
template <int kSharers, int kQuads, int kThreads, int kLeft, int kTaken>
struct GatheredSums {
  float4 quads[kSharers - 1][kQuads][kThreads];

  // By all sharers, with the number of the CTA's tiles before. Whether the executing one is the first.
  template <int kBlocks, int kRegisters>
  __device__ bool gather(float (&sums)[kBlocks][kRegisters], int sharer, int tiles_before) {
    static_assert(kBlocks * kRegisters == 4 * kQuads);
    constexpr int kAll = kSharers * kThreads, kQuadsOfBlock = kRegisters / 4;
    const int thread = static_cast<int>(threadIdx.x) % kThreads;
    if (sharer > 0) {
      if (tiles_before > 0) ptx::barrier_sync(kTaken, kAll);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float* from = &sums[i / kQuadsOfBlock][i % kQuadsOfBlock * 4];
        quads[sharer - 1][i][thread] = make_float4(from[0], from[1], from[2], from[3]);
      }
      ptx::barrier_arrive(kLeft, kAll);
      return false;
    }
    if (tiles_before > 0) ptx::barrier_arrive(kTaken, kAll);
    ptx::barrier_sync(kLeft, kAll);
#pragma unroll
    for (int other = 0; other < kSharers - 1; ++other) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 quad = quads[other][i][thread];
        float* to = &sums[i / kQuadsOfBlock][i % kQuadsOfBlock * 4];
        to[0] += quad.x;
        to[1] += quad.y;
        to[2] += quad.z;
        to[3] += quad.w;
      }
    }
    return true;
  }
};

// Of one sharer: nothing.
template <int kQuads, int kThreads, int kLeft, int kTaken>
struct GatheredSums<1, kQuads, kThreads, kLeft, kTaken> {};

}  // namespace jaxgemm
