#include "ptx/registers.cuh"

namespace emu {

void setmaxnreg(int registers) {
  const Pc where = EMU_CALLER;
  constexpr int kWarpgroup = 128;
  together(warpgroup_meeting(), index_of(self()) % kWarpgroup, "setmaxnreg", where, registers, [&](auto&& lanes) {
    for (int i = 1; i < kWarpgroup; ++i) {
      if (lanes(i) == lanes(0)) continue;
      report(Kind::kProtocol, where,
             "setmaxnreg " + std::to_string(lanes(0)) + " and " + std::to_string(lanes(i)) +
                 " in one warpgroup: all its warps must execute the same");
      return;
    }
  });
}

}  // namespace emu
