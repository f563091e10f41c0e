// What the two implementations of peer.cuh share.
#pragma once

#include <cstdint>

namespace jaxgemm::ptx {

// Data, and who says that it has come.
struct FlaggedWord {
  uint32_t data, flag;
};

struct FlaggedPair {
  FlaggedWord words[2];
};

}  // namespace jaxgemm::ptx
