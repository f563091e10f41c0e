// Tiles that nobody has been dealt beforehand: a cluster takes the next one when it comes to have time. CTAs that find
// no multiprocessor at first, as another kernel is there (an all-reduce, say), would else begin with all of their tiles
// when the others have ended.
//
// A word in global memory counts the tiles that were taken. One thread of the cluster asks it, a tile or two ahead, and
// tells all CTAs, whose readers (threads that load, warps that multiply) each see every tile in its order. A thread of
// each other CTA tells the first when all have: to order what they read before what the first CTA writes next takes a
// fence of the cluster, for which no reader should have to wait.
#pragma once

#include "gemm.h"
#include "ptx/cluster.cuh"
#include "ptx/global_flag.cuh"
#include "ptx/mbarrier.cuh"

namespace jaxgemm {

// kReaders: of a CTA, each of which calls next() once for a tile; kClusterCtas: CTAs of a cluster.
template <int kReaders, int kClusterCtas>
struct TakenTiles {
  static constexpr int kSlots = 2;  // each is a tile that others, who are idle, cannot have any more
  ptx::Mbarrier told[kSlots], read[kSlots];
  unsigned tile[kSlots];

  // By one thread of the CTA of this rank, before fence_mbarrier_init() and a barrier of the cluster.
  __device__ void init(int rank) {
    for (int slot = 0; slot < kSlots; ++slot) {
      ptx::mbarrier_init(told[slot], 1);
      ptx::mbarrier_init(read[slot], kReaders + (rank == 0 ? kClusterCtas - 1 : 0));
    }
  }

  // By one thread of the first CTA: hands out tiles from `first` on, until one is none of the `tiles` that there are.
  __device__ void hand_out(unsigned* g_taken, unsigned first, unsigned tiles) {
    unsigned next = 0;
    for (unsigned n = 0; next < tiles; ++n) {
      const unsigned slot = n % kSlots;
      if constexpr (kClusterCtas == 1) {
        ptx::mbarrier_wait(read[slot], n / kSlots % 2 ^ 1);
      } else {
        ptx::mbarrier_wait_cluster(read[slot], n / kSlots % 2 ^ 1);
      }
      next = first + ptx::take_ticket(g_taken);
      tell(slot, next);
    }
  }
  // By one thread of each other CTA.
  __device__ void pass_on(unsigned tiles) {
    for (unsigned n = 0; look(n) < tiles; ++n) {
      ptx::mbarrier_wait(read[n % kSlots], n / kSlots % 2);
      ptx::mbarrier_arrive_cluster(read[n % kSlots], 0);
    }
  }

  // The n-th tile that was handed out, for a reader of one thread. The one that `arms` it, one of the CTA's, makes the
  // barrier wait for the word: for no other tile's, as it has seen the one before in this slot.
  __device__ unsigned next(unsigned n, bool arms) {
    if (kClusterCtas > 1 && arms) ptx::mbarrier_arrive_expect_tx(told[n % kSlots], sizeof(unsigned));
    const unsigned found = look(n);
    ptx::mbarrier_arrive(read[n % kSlots]);
    return found;
  }
  // The same for a warp, all of whose lanes, as the compiler sees it too, have the same number.
  __device__ unsigned next_of_warp(unsigned n) {
    const unsigned found = __shfl_sync(0xffffffff, look(n), 0);
    __syncwarp();  // all have read
    if (threadIdx.x % kWarpSize == 0) ptx::mbarrier_arrive(read[n % kSlots]);
    return found;
  }

 private:
  __device__ void tell(unsigned slot, unsigned next) {
    if constexpr (kClusterCtas == 1) {  // st.async is for clusters only
      tile[slot] = next;
      ptx::mbarrier_arrive(told[slot]);
    } else {
#pragma unroll
      for (int cta = 0; cta < kClusterCtas; ++cta) ptx::store_async(tile[slot], next, told[slot], cta);
    }
  }
  __device__ unsigned look(unsigned n) {
    ptx::mbarrier_wait(told[n % kSlots], n / kSlots % 2);
    return tile[n % kSlots];
  }
};

}  // namespace jaxgemm
