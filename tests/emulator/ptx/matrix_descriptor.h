// Matrix descriptors of wgmma, decoded: where in shared memory each part of an operand lies.
#pragma once

#include <vector>

#include "core/emu.h"
#include "ptx/wgmma_types.cuh"

namespace emu {

using jaxgemm::ptx::Major;

// 16 bytes of elements that lie side by side: `mn` and `k` are those of the first.
struct OperandChunk {
  SharedAddress at;
  int mn, k;
};

// The chunks of an operand of `extent` x K elements (A: extent 64, B: extent N), where 32 bytes hold K elements.
// fatal() if the descriptor is malformed or leads out of shared memory.
std::vector<OperandChunk> operand_chunks(uint64_t descriptor, Major major, int element_bytes, int extent,
                                         const char* what, Pc where);

}  // namespace emu
