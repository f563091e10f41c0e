#include "core/conflicts.h"

#include <algorithm>

namespace emu {
namespace {

constexpr int kBanks = 32, kBankBytes = 4, kMaxBytes = 16;

}  // namespace

void ConflictLog::add(Pc where, int lane, uint32_t offset, size_t bytes, Access access) {
  Log& log = logs_[where];
  log.access = access;
  const size_t n = log.executed[lane]++;
  if (n >= log.instances.size()) log.instances.resize(n + 1);
  Instance& instance = log.instances[n];
  instance.offsets[lane] = offset;
  instance.lanes |= 1u << lane;
  instance.bytes = static_cast<uint8_t>(std::min<size_t>(bytes, kMaxBytes));
}

// A warp's access is served in phases of 128 bytes at most: 32 lanes of 4 bytes, 16 of 8, 8 of 16. Each phase takes as
// many wavefronts as a bank has different words to give. (CUDA C++ best practices guide, "Shared memory and memory
// banks". Hardware may merge phases whose lanes read the same words; that is not counted.)
Wavefronts ConflictLog::wavefronts(const Instance& instance) {
  const int words = std::max<int>(1, instance.bytes / kBankBytes);
  const int lanes_per_phase = kBanks / words;
  Wavefronts sum = {.accesses = 1};
  for (int first = 0; first < 32; first += lanes_per_phase) {
    std::array<std::array<uint32_t, 32>, kBanks> seen;
    std::array<int, kBanks> count = {};
    int active = 0;
    for (int lane = first; lane < first + lanes_per_phase; ++lane) {
      if (!(instance.lanes >> lane & 1)) continue;
      ++active;
      for (int i = 0; i < words; ++i) {
        const uint32_t word = instance.offsets[lane] / kBankBytes + static_cast<uint32_t>(i);
        auto& bank = seen[word % kBanks];
        int& n = count[word % kBanks];
        if (std::find(bank.begin(), bank.begin() + n, word) == bank.begin() + n) bank[static_cast<size_t>(n++)] = word;
      }
    }
    if (active == 0) continue;
    sum.wavefronts += *std::max_element(count.begin(), count.end());
    sum.ideal += 1;
  }
  return sum;
}

void ConflictLog::flush(Findings& findings) {
  for (auto& [where, log] : logs_) {
    if (log.instances.empty()) continue;
    Wavefronts sum;
    for (const Instance& instance : log.instances) {
      const Wavefronts one = wavefronts(instance);
      sum.accesses += one.accesses;
      sum.wavefronts += one.wavefronts;
      sum.ideal += one.ideal;
    }
    findings.add_wavefronts(where, log.access == Access::kRead ? "load" : "store", sum);
    log.instances.clear();
    log.executed = {};
  }
}

}  // namespace emu
