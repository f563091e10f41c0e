// A probe runs one instruction group on raw words and writes what it gave: the emulator's answer must be the GPU's, bit
// by bit. A probe makes its operands from the input words itself (small integers, so that sums are exact).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jaxgemm::probes {

struct Probe {
  std::string_view name;
  int in_words, out_words;
  // Enqueues it on `stream`; `in` and `out` are device memory. Returns "" or what went wrong.
  std::string (*launch)(const uint32_t* in, uint32_t* out, void* stream);
};

// All probes of one file each.
std::span<const Probe> sm80_probes();
std::span<const Probe> stmatrix_probes();
std::span<const Probe> sm89_probes();
std::span<const Probe> convert_probes();
std::span<const Probe> wgmma_probes();
std::span<const Probe> sm90_probes();
std::span<const Probe> peers_probes();

inline std::vector<std::span<const Probe>> all() {
  return {sm80_probes(),  stmatrix_probes(), sm89_probes(), convert_probes(),
          wgmma_probes(), sm90_probes(),     peers_probes()};
}

}  // namespace jaxgemm::probes
