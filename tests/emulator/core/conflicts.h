// Bank conflicts of plain shared-memory accesses. Fibers do not run in lock step, so the accesses of a warp are put
// together afterwards: the n-th execution of one instruction by each lane since the warp last met.
#pragma once

#include <array>
#include <unordered_map>

#include "core/emu.h"
#include "core/findings.h"

namespace emu {

class ConflictLog {
 public:
  void add(Pc where, int lane, uint32_t offset, size_t bytes, Access access);
  void flush(Findings& findings);  // the warp has met

 private:
  struct Instance {
    std::array<uint32_t, 32> offsets;
    uint32_t lanes = 0;
    uint8_t bytes = 0;
  };
  struct Log {
    Access access = Access::kRead;
    std::array<uint16_t, 32> executed = {};
    std::vector<Instance> instances;
  };
  static Wavefronts wavefronts(const Instance& instance);
  std::unordered_map<Pc, Log> logs_;
};

}  // namespace emu
