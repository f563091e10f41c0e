// What one thread knows, in a form that a barrier of a thousand threads can hand round.
#pragma once

#include <array>

#include "core/emu.h"

namespace emu {

// A thread's own agents are the first of the cluster's: kOwnAgents per thread, in this order.
inline constexpr int kOwnAgents = 3;
enum OwnAgent { kOwnAccesses, kOwnCpAsync, kOwnBulk };

// Numbers of all agents: those of the thread's own agents, which change often, beside a snapshot that many threads
// share.
struct View {
  Snapshot base;
  std::array<uint32_t, kOwnAgents> own = {};

  uint32_t of(Agent agent, Agent first_own) const {
    if (agent - first_own < kOwnAgents) return own[agent - first_own];
    return base && agent < base->size() ? (*base)[agent] : 0;
  }
  void join(const Clock::Half& from, Agent first_own);
  void note(Agent agent, uint32_t number, Agent first_own);
  void publish(Clock::Half& into, Agent first_own) const;
};

}  // namespace emu
