// What the stand-ins for CUDA's headers (tests/emulator/include) are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/emu.h"

namespace emu {

// threadIdx.x, blockIdx.x, blockDim.x, gridDim.x. Grids and CTAs have one dimension.
unsigned thread_index();
unsigned block_index();
unsigned block_threads();
unsigned grid_blocks();

EMU_NOINLINE void sync_threads();
EMU_NOINLINE void sync_warp(uint32_t mask);
EMU_NOINLINE uint64_t shuffle(uint32_t mask, uint64_t value, int source_lane);
EMU_NOINLINE uint32_t ballot(uint32_t mask, bool vote);

// The first byte of the CTA's dynamic shared memory.
void* shared_memory();

// One vector access of the thread at `from`, then one at `to`. GPUs fault on a misaligned vector.
EMU_NOINLINE void copy_vector(void* to, const void* from, size_t bytes);

// As the schedule of the run says.
int multiprocessors();

// cudaLaunchKernelEx. Returns "" or why the launch is refused.
std::string launch(unsigned ctas, int threads, int smem_bytes, int cluster_ctas, int smem_limit_bytes,
                   void (*entry)(void*), void* params, size_t params_bytes);

// What cudaGetDriverEntryPoint finds; nullptr if there is no such function.
void* driver_entry_point(const char* name);

}  // namespace emu
