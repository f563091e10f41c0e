// Emulates cuda/ptx/barrier.cuh.
#pragma once

#include "core/emu.h"

namespace emu {
EMU_NOINLINE void barrier_sync(int id, int threads);
EMU_NOINLINE void barrier_arrive(int id, int threads);
}  // namespace emu

namespace jaxgemm::ptx {

EMU_INLINE void barrier_sync(int id, int threads) { emu::barrier_sync(id, threads); }
EMU_INLINE void barrier_arrive(int id, int threads) { emu::barrier_arrive(id, threads); }

}  // namespace jaxgemm::ptx
