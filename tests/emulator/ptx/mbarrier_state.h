// The state of an mbarrier, for the instructions that arrive at it, wait for it or complete copies on it. It is kept
// beside shared memory; the eight bytes themselves are poison.
#pragma once

#include <map>
#include <set>

#include "core/emu.h"

namespace emu {

struct MbarrierState {
  SharedAddress at;
  uint32_t count = 0;      // arrivals of a phase
  uint32_t pending = 0;    // that the phase in progress still waits for
  int64_t tx_bytes = 0;    // expected and not written; negative if written before they were expected
  uint32_t phases = 0;     // completed so far
  Clock arriving, passed;  // what is known by who arrived so far, and by who waited for a completed phase
  WaitList waiting;
  bool alive = false;    // initialised and not invalidated
  bool visible = false;  // the initialisation, to the copy engine and to other CTAs
  const Thread* initialiser = nullptr;

  // The last arrival of each thread of another CTA.
  struct Arrival {
    uint32_t number;  // of the thread's accesses
    Pc where;
  };
  std::map<Agent, Arrival> remote;

  // The copies that complete here are operations of one agent, numbered as they are issued.
  Agent agent = 0;
  uint32_t issued = 0, landed = 0;  // all copies up to `landed` have written
  std::set<uint32_t> landed_early;  // and these too
  Pc last_copy = nullptr;

  uint32_t parity() const { return phases % 2; }  // of the phase in progress

  void arrive(Pc where);  // of the executing thread
  void expect(uint32_t bytes, Pc where);
  uint32_t issue_copy(Pc where);  // returns its number
  void complete_copy(uint32_t number, uint32_t bytes, Pc where);

 private:
  void settle();
  void check_tx(Pc where);
};

// The live mbarrier at this place, used by the executing thread; fatal() if there is none.
MbarrierState& mbarrier_at(SharedAddress address, const char* what, Pc where);
// The same for who uses it through the copy engine or from another CTA: its initialisation must have been fenced.
MbarrierState& mbarrier_reached(SharedAddress address, const char* what, Pc where);
// Where it lies in the executing thread's CTA.
SharedAddress mbarrier_address(const void* s_barrier, const char* what, Pc where);

}  // namespace emu
