// TMA: copies of boxes of a tensor between global and shared memory, by the copy engine.
// PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy": "cp.async.bulk.tensor",
// "cp.async.bulk.commit_group", "cp.async.bulk.wait_group", "prefetch, prefetchu"; "Tensors".
//
// The tensor map (tile/tensor_map.h) says where the tensor lies and how large the box is; it is a
// `const __grid_constant__ CUtensorMap` parameter of the kernel. Coordinates are elements, innermost first, of the
// box's first element; the box may reach past the end, and a load's may begin before the tensor: elements outside load
// as zero, count as bytes all the same, and are not stored. Two rules that PTX ISA doesn't mention, and for which an
// H200 gives "illegal instruction": the innermost coordinate is a multiple of 16 bytes, and no coordinate of a store is
// negative.
//
// One thread issues a copy. Loads complete on an mbarrier. Stores are waited for by the thread that issued them, in
// groups; what they read must have been made visible to the copy engine by fence_proxy_async(). Boxes in shared memory
// are aligned to 128 bytes, swizzled ones to eight times the swizzle's span.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ptx/address.cuh"
#include "ptx/mbarrier_types.cuh"

namespace jaxgemm::ptx {

// Hides the first copy's wait for the map itself.
__device__ inline void tma_prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ inline void tma_load_2d(void* s_box, const CUtensorMap& map, Mbarrier& s_barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared_address(s_box)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(&s_barrier))
      : "memory");
}

__device__ inline void tma_load_3d(void* s_box, const CUtensorMap& map, Mbarrier& s_barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(shared_address(s_box)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&s_barrier))
      : "memory");
}

// The box is written to the place of s_box in every CTA of the cluster whose rank's bit is set in cta_mask, and its
// bytes are counted by the mbarrier at the place of s_barrier in each of them.
__device__ inline void tma_load_multicast_2d(void* s_box, const CUtensorMap& map, Mbarrier& s_barrier, int x, int y,
                                             uint16_t cta_mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(s_box)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(&s_barrier)), "h"(cta_mask)
      : "memory");
}

__device__ inline void tma_load_multicast_3d(void* s_box, const CUtensorMap& map, Mbarrier& s_barrier, int x, int y,
                                             int z, uint16_t cta_mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(s_box)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&s_barrier)), "h"(cta_mask)
      : "memory");
}

__device__ inline void tma_store_2d(const CUtensorMap& map, const void* s_box, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
               "r"(y), "r"(shared_address(s_box))
               : "memory");
}

__device__ inline void tma_store_3d(const CUtensorMap& map, const void* s_box, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(x), "r"(y), "r"(z), "r"(shared_address(s_box))
               : "memory");
}

// Makes one group of the stores that this thread has issued since the last one.
__device__ inline void tma_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's last groups still read shared memory: what the others read may be
// overwritten.
template <int kPending>
__device__ inline void tma_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// The same, until what the others wrote is in global memory.
template <int kPending>
__device__ inline void tma_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace jaxgemm::ptx
