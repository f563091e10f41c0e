// What an mbarrier is to the kernels and to the emulator. PTX ISA, "mbarrier".
#pragma once

#include <cstdint>

namespace jaxgemm::ptx {

// Lives in shared memory; only the functions of mbarrier.cuh may look inside.
//
// A phase is complete when `count` arrivals are in and every byte that was expected has been written. Phases alternate
// between parity 0 (the first) and 1. Waiting for a parity waits for the phase in progress if it has that parity, and
// else returns at once, because the phase before it, which has the parity, is complete: a wait for parity 1 on a fresh
// barrier succeeds.
struct alignas(8) Mbarrier {
  uint64_t state;
};

inline constexpr uint32_t kMbarrierMaxCount = (1u << 20) - 1;    // of arrivals in a phase
inline constexpr uint32_t kMbarrierMaxTxBytes = (1u << 20) - 1;  // expected and not written yet

}  // namespace jaxgemm::ptx
