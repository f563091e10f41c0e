// cp.async: copies from global to shared memory that the issuing thread does not wait for.
// PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy": "cp.async", "cp.async.commit_group",
// "cp.async.wait_group / cp.async.wait_all".
//
// Copies belong to the thread that issued them: what a thread waited for is complete for that thread only, and other
// threads see it after a barrier. Copies of one thread are not ordered among themselves unless it waits in between.
#pragma once

#include <cstdint>

#include "ptx/address.cuh"

namespace jaxgemm::ptx {

// Copies 16 bytes. Both addresses must be multiples of 16. Bypasses the L1 cache.
__device__ inline void cp_async_16(void* s_dst, const void* g_src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(s_dst)),
               "l"(__cvta_generic_to_global(g_src))
               : "memory");
}

// Copies the first valid_bytes (0 to 16) of 16 bytes and fills the rest with zeros. Both addresses must be multiples of
// 16, even if nothing is read. Bypasses the L1 cache.
__device__ inline void cp_async_16(void* s_dst, const void* g_src, int valid_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(s_dst)),
               "l"(__cvta_generic_to_global(g_src)), "r"(valid_bytes)
               : "memory");
}

// The same for 4 or 8 bytes, through the L1 cache, which is the only way that instructions this narrow take.
template <int kBytes>
__device__ inline void cp_async(void* s_dst, const void* g_src, int valid_bytes) {
  static_assert(kBytes == 4 || kBytes == 8);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(s_dst)),
               "l"(__cvta_generic_to_global(g_src)), "n"(kBytes), "r"(valid_bytes)
               : "memory");
}

// Makes a group of the copies that the thread issued since the last commit; the group may be empty.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all groups of the thread but the last kPending are complete.
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits for all copies of the thread, committed or not.
__device__ inline void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace jaxgemm::ptx
