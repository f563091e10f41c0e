// Words by which CTAs of a grid know of each other. CTAs run one after the other, in any order, or several at the same
// time where the schedule has workers: who waits for a flag of a CTA that has not begun would wait for ever on a GPU
// that has no room for it, and is reported.
#include "ptx/global_flag.cuh"

#include <chrono>
#include <thread>

#include "core/machine.h"
#include "core/session.h"

namespace emu {

unsigned take_ticket(unsigned* g_next) {
  touch_global(g_next, sizeof(*g_next), sizeof(*g_next), Access::kAtomic, "atom", EMU_CALLER);
  return __atomic_fetch_add(g_next, 1u, __ATOMIC_RELAXED);
}

void raise_flag(unsigned* g_flag) {
  touch_global(g_flag, sizeof(*g_flag), sizeof(*g_flag), Access::kAtomic, "st.release", EMU_CALLER);
  Clock known;
  publish(known);
  session().flags.raise(g_flag, {session().launches, cta_of(self()).index, known.seen.freeze()});
  __atomic_store_n(g_flag, 1u, __ATOMIC_RELEASE);
}

void wait_for_flag(const unsigned* g_flag) {
  constexpr auto kLongest = std::chrono::seconds(60), kOneCtaAtATime = std::chrono::seconds(0);
  const Pc where = EMU_CALLER;
  touch_global(g_flag, sizeof(*g_flag), sizeof(*g_flag), Access::kAtomic, "ld.acquire", where);
  const auto from = std::chrono::steady_clock::now();
  while (__atomic_load_n(g_flag, __ATOMIC_ACQUIRE) == 0) {
    if (session().stopped) abandon();
    if (std::chrono::steady_clock::now() - from >= (session().schedule.workers > 1 ? kLongest : kOneCtaAtATime)) {
      fatal(Kind::kDeadlock, where, "waits for a flag that no CTA raises that began before this one");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Flags::Raised raised;
  if (session().flags.find(g_flag, raised) && raised.launch == session().launches)
    learn_of_cta(raised.cta, raised.seen);
}

}  // namespace emu
