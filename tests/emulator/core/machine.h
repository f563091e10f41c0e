// The parts of a GPU that one OS thread emulates at a time: a cluster of CTAs, their warps and threads.
#pragma once

#include <deque>
#include <random>
#include <unordered_map>
#include <utility>

#include "core/clock.h"
#include "core/conflicts.h"
#include "core/emu.h"
#include "core/fiber.h"
#include "core/shadow.h"

namespace emu {

inline constexpr int kWarpThreads = 32, kWarpgroupThreads = 128;
inline constexpr uint32_t kSharedStride = 256 * 1024;  // from one CTA's shared memory to the next one's in a cluster

class Session;
using States = std::vector<std::pair<const void*, std::shared_ptr<void>>>;

struct Thread {
  Cta* cta = nullptr;
  int index = 0;
  Agent first_agent = 0;  // of its kOwnAgents
  Fiber fiber;
  View seen, fenced;
  bool exited = false;
  const char* waits_for = nullptr;
  Pc waits_at = nullptr;
  States states;

  int lane() const { return index % kWarpThreads; }
  int warp() const { return index / kWarpThreads; }
  uint32_t& now() { return seen.own[kOwnAccesses]; }
  uint32_t now() const { return seen.own[kOwnAccesses]; }
  bool knows(Agent agent, uint32_t number, bool through_proxy) const {
    return (through_proxy ? fenced : seen).of(agent, first_agent) >= number;
  }
};

struct Warp {
  Meeting meeting;
  Clock arrived, passed;  // __syncwarp
  uint32_t ready = 0;     // lanes that can go on
  bool queued = false;
  ConflictLog conflicts;
};

struct Cta {
  Cluster* cluster = nullptr;
  int rank = 0;
  unsigned index = 0;  // blockIdx.x
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Meeting> warpgroups;
  unsigned char* shared = nullptr;
  Shadow shadow;
  Meeting barrier;                        // __syncthreads
  Clock barrier_arrived, barrier_passed;  // who waits for the next one knows; who has passed the last one knew
  int live = 0;
  std::vector<std::function<void()>> exit_checks;
  States states;
};

struct Operation {
  Thread* issuer;
  std::function<void()> complete;
};

// Operations that some unit works on in order.
struct Queue {
  Engine engine;
  uint64_t id;
  std::deque<Operation> operations;
};

// Everything that an OS thread needs to emulate clusters one after the other.
struct Cluster {
  Session* session = nullptr;
  std::vector<std::unique_ptr<Cta>> ctas;
  Stacks stacks;
  std::unique_ptr<unsigned char, void (*)(void*)> arena{nullptr, nullptr};
  size_t arena_bytes = 0;
  std::mt19937_64 random;
  Agent agents = 0;
  std::vector<Warp*> ready;
  std::vector<Cta*> cta_of_ready;  // parallel to `ready`
  std::vector<Queue> queues;
  std::unordered_map<uint64_t, size_t> queue_at;
  bool aborted = false;

  void prepare(Session& session, unsigned first_cta, uint64_t seed);
  void run();
  void make_ready(Thread& thread);

 private:
  void schedule();
  void run_warp(Cta& cta, Warp& warp);
  void resume(Thread& thread);
  bool complete_one(bool slow_ones_too);
  void report_deadlock();
  void finish(Cta& cta);
};

Thread* current();               // nullptr when no fiber runs
Thread& acting();                // it, or else the issuer of the asynchronous operation that completes
const Thread* acting_or_null();  // nullptr in the checks of a CTA's exit
Session& session();
// Whether the thread has learned, of a CTA that is by itself, what its thread `writer` did by then.
bool knows_of_cta(const Thread& thread, unsigned index, int writer, uint32_t time);
// Ends the executing fiber for good, and with it the cluster.
[[noreturn]] void abandon();

}  // namespace emu
