#include "ptx/elect.cuh"

namespace emu {

// Which lane it is PTX leaves open.
bool elect_one() {
  const Pc where = EMU_CALLER;
  int lane = lane_of(self());
  warp_together("elect.sync", where, lane, [](auto&&) {});
  return lane == 0;
}

}  // namespace emu
