// One thread of a warp. PTX ISA, "Parallel Synchronization and Communication Instructions: elect.sync".
#pragma once

#include <cstdint>

namespace jaxgemm::ptx {

// Whether the executing thread is the one that is chosen: of a warp that is whole here, always the same. For what one
// thread issues this is better than a comparison of its number: the compiler knows that it is one, and makes no loop
// over the lanes that might take part.
__device__ inline bool elect_one() {
  uint32_t is_elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(is_elected));
  return is_elected != 0;
}

}  // namespace jaxgemm::ptx
