// Zeros for flags in the workspace, whose contents are undefined (ptx/global_flag.cuh). A kernel like others, not
// cudaMemsetAsync(): so profilers count it and the emulator runs it.
#pragma once

#include <cstdint>
#include <string>

namespace jaxgemm {

// Enqueues it. Returns "" or what went wrong.
std::string zero_words(unsigned* words, int64_t count, void* stream);

}  // namespace jaxgemm
