// What threads learn of each other: barriers, releases and acquires.
#include <string>

#include "core/machine.h"
#include "core/runtime.h"
#include "core/session.h"

namespace emu {

Agent thread_agent(const Thread& thread) { return thread.first_agent + kOwnAccesses; }
Agent cp_async_agent(const Thread& thread) { return thread.first_agent + kOwnCpAsync; }
Agent bulk_agent(const Thread& thread) { return thread.first_agent + kOwnBulk; }
Agent new_agent(Cluster& cluster) { return cluster.agents++; }

// The thread's time goes on at every release: what it does afterwards is not covered by it.
void publish(Clock& into) {
  Thread& thread = self();
  thread.seen.publish(into.seen, thread.first_agent);
  thread.fenced.publish(into.fenced, thread.first_agent);
  ++thread.now();
}

void acquire(const Clock& from) {
  Thread& thread = self();
  thread.seen.join(from.seen, thread.first_agent);
  thread.fenced.join(from.fenced, thread.first_agent);
}

void observe(Thread& thread, Agent agent, uint32_t number) {
  thread.seen.note(agent, number, thread.first_agent);
  thread.fenced.note(agent, number, thread.first_agent);
}

void observe(Agent agent, uint32_t number) { observe(self(), agent, number); }

// CTAs that are no cluster: their agents' numbers are their own.
struct OtherCtas {
  std::unordered_map<unsigned, Snapshot> seen;
};

void learn_of_cta(unsigned index, const Snapshot& seen) { state<OtherCtas>(self()).seen[index] = seen; }

bool knows_of_cta(const Thread& thread, unsigned index, int writer, uint32_t time) {
  const auto& others = state<OtherCtas>(const_cast<Thread&>(thread)).seen;
  const auto other = others.find(index);
  if (other == others.end() || !other->second) return false;
  const auto agent = static_cast<size_t>(writer * kOwnAgents + kOwnAccesses);
  return agent < other->second->size() && (*other->second)[agent] >= time;
}

void fence_async_proxy() {
  Thread& thread = self();
  thread.fenced = thread.seen;
  ++thread.now();
}

Actor thread_actor(Thread& thread, const char* what, Pc where) {
  return {thread_agent(thread), thread.now(), &thread, false, what, where};
}

Actor this_thread(const char* what, Pc where) { return thread_actor(self(), what, where); }

Actor async_actor(Agent agent, uint32_t number, bool async_proxy, const char* what, Pc where) {
  return {agent, number, &self(), async_proxy, what, where};
}

void sync_threads() {
  const Pc where = EMU_CALLER;
  Thread& thread = self();
  Cta& cta = *thread.cta;
  publish(cta.barrier_arrived);
  if (meet(cta.barrier, thread.index, "__syncthreads", where, nullptr)) {
    for (Warp& warp : cta.warps) warp.conflicts.flush(session().findings);
    cta.barrier_passed = cta.barrier_arrived;
    cta.shadow.next_generation();
    leave(cta.barrier);
  }
  acquire(cta.barrier_passed);
}

namespace {

constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

void check_mask(uint32_t mask, const char* op, Pc where) {
  if (mask != kAllLanes) fatal(Kind::kProtocol, where, std::string(op) + ": masks of some lanes only are not modelled");
}

}  // namespace

void sync_warp(uint32_t mask) {
  const Pc where = EMU_CALLER;
  check_mask(mask, "__syncwarp", where);
  Thread& thread = self();
  Warp& warp = thread.cta->warps[static_cast<size_t>(thread.warp())];
  publish(warp.arrived);
  if (meet(warp.meeting, thread.lane(), "__syncwarp", where, nullptr)) {
    warp.passed = warp.arrived;
    leave(warp.meeting);
  }
  acquire(warp.passed);
}

uint64_t shuffle(uint32_t mask, uint64_t value, int source) {
  const Pc where = EMU_CALLER;
  check_mask(mask, "__shfl_sync", where);
  struct Lane {
    uint64_t in, out;
    int source;
  } lane = {value, 0, source};
  warp_together("__shfl_sync", where, lane, [](auto&& lanes) {
    for (int i = 0; i < kWarpThreads; ++i) lanes(i).out = lanes(lanes(i).source % kWarpThreads).in;
  });
  return lane.out;
}

uint32_t ballot(uint32_t mask, bool vote) {
  const Pc where = EMU_CALLER;
  check_mask(mask, "vote", where);
  struct Lane {
    bool vote;
    uint32_t result;
  } lane = {vote, 0};
  warp_together("vote", where, lane, [](auto&& lanes) {
    uint32_t result = 0;
    for (int i = 0; i < kWarpThreads; ++i) result |= static_cast<uint32_t>(lanes(i).vote) << i;
    for (int i = 0; i < kWarpThreads; ++i) lanes(i).result = result;
  });
  return lane.result;
}

unsigned thread_index() { return static_cast<unsigned>(self().index); }
unsigned block_index() { return self().cta->index; }
unsigned block_threads() { return static_cast<unsigned>(self().cta->threads.size()); }
unsigned grid_blocks() { return session().shape.ctas; }
void* shared_memory() { return self().cta->shared; }

}  // namespace emu
