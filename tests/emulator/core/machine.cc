#include "core/machine.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>

#include "core/poison.h"
#include "core/session.h"

namespace emu {
namespace {

thread_local Thread* t_current = nullptr;  // whose fiber runs
thread_local Thread* t_issuer = nullptr;   // whose asynchronous operation completes, when no fiber runs
thread_local Cluster* t_cluster = nullptr;

// Ends a completion that found something fatal.
struct Aborted {};

void thread_main(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  Session& session = *thread.cta->cluster->session;
  session.entry(session.params);
  thread.exited = true;
  thread.fiber.suspend();
}

std::shared_ptr<void>& slot_of(States& states, const void* key) {
  for (auto& [known, slot] : states) {
    if (known == key) return slot;
  }
  return states.emplace_back(key, nullptr).second;
}

}  // namespace

Thread* current() { return t_current; }
const Thread* acting_or_null() { return t_current != nullptr ? t_current : t_issuer; }
Thread& acting() { return t_current != nullptr ? *t_current : *t_issuer; }
Session& session() { return *t_cluster->session; }

void abandon() {
  t_cluster->aborted = true;
  t_cluster->session->stopped = true;
  if (t_current == nullptr) throw Aborted();
  t_current->fiber.suspend();
  std::abort();  // an abandoned fiber is not resumed
}

// --- a cluster
// --------------------------------------------------------------------------------------------------------

void Cluster::prepare(Session& of, unsigned first_cta, uint64_t seed) {
  const LaunchShape& shape = of.shape;
  session = &of;
  aborted = false;
  random.seed(seed);
  ready.clear();
  cta_of_ready.clear();
  queues.clear();
  queue_at.clear();
  stacks.grow(shape.cluster_ctas * shape.threads);
  const size_t bytes = static_cast<size_t>(shape.cluster_ctas) * kSharedStride;
  if (arena_bytes < bytes) {
    arena = {static_cast<unsigned char*>(std::aligned_alloc(kSharedStride, bytes)), std::free};
    arena_bytes = bytes;
  }
  ctas.clear();
  agents = 0;
  for (int rank = 0; rank < shape.cluster_ctas; ++rank) {
    auto cta = std::make_unique<Cta>();
    cta->cluster = this;
    cta->rank = rank;
    cta->index = first_cta + static_cast<unsigned>(rank);
    cta->shared = arena.get() + static_cast<size_t>(rank) * kSharedStride;
    permit(cta->shared, kSharedStride);
    std::memset(cta->shared, 0xFF, static_cast<size_t>(shape.smem_bytes));
    forbid(cta->shared + shape.smem_bytes, kSharedStride - static_cast<uint32_t>(shape.smem_bytes));
    cta->shadow.reset(static_cast<size_t>(shape.smem_bytes));
    cta->barrier.size = shape.threads;
    cta->live = shape.threads;
    cta->threads = std::vector<Thread>(static_cast<size_t>(shape.threads));
    cta->warps = std::vector<Warp>(static_cast<size_t>(shape.threads / kWarpThreads));
    cta->warpgroups = std::vector<Meeting>(static_cast<size_t>(shape.threads / kWarpgroupThreads));
    for (Warp& warp : cta->warps) warp.meeting.size = kWarpThreads;
    for (Meeting& warpgroup : cta->warpgroups) warpgroup.size = kWarpgroupThreads;
    for (int i = 0; i < shape.threads; ++i) {
      Thread& thread = cta->threads[static_cast<size_t>(i)];
      thread.cta = cta.get();
      thread.index = i;
      thread.first_agent = agents;
      thread.now() = 1;
      agents += kOwnAgents;
      thread.fiber.start(stacks.bottom(rank * shape.threads + i), thread_main, &thread);
    }
    ctas.push_back(std::move(cta));
  }
  for (auto& cta : ctas) {
    for (Thread& thread : cta->threads) make_ready(thread);
  }
}

void Cluster::make_ready(Thread& thread) {
  Warp& warp = thread.cta->warps[static_cast<size_t>(thread.warp())];
  warp.ready |= 1u << thread.lane();
  thread.waits_for = nullptr;
  if (warp.queued) return;
  warp.queued = true;
  ready.push_back(&warp);
  cta_of_ready.push_back(thread.cta);
}

void Cluster::resume(Thread& thread) {
  t_current = &thread;
  thread.fiber.resume();
  t_current = nullptr;
  if (!thread.exited || aborted) return;
  Cta& cta = *thread.cta;
  if (--cta.live == 0) finish(cta);
}

void Cluster::finish(Cta& cta) {
  for (const auto& check : cta.exit_checks) check();
  for (Warp& warp : cta.warps) warp.conflicts.flush(session->findings);
}

// Lanes of a warp go on in random order, which is not the order of other warps in between: a warp that meets at an
// instruction does so without walking through the stacks of all others.
void Cluster::run_warp(Cta& cta, Warp& warp) {
  const auto first = static_cast<size_t>(&warp - cta.warps.data()) * kWarpThreads;
  const uint32_t lanes = std::exchange(warp.ready, 0);
  const auto turn = static_cast<int>(random() % kWarpThreads);
  const bool backwards = random() % 2 != 0;
  for (int i = 0; i < kWarpThreads; ++i) {
    const int lane = (turn + (backwards ? kWarpThreads - i : i)) % kWarpThreads;
    if (!(lanes >> lane & 1)) continue;
    resume(cta.threads[first + static_cast<size_t>(lane)]);
    if (aborted) return;
  }
  session->switches += std::popcount(lanes);
}

bool Cluster::complete_one(bool slow_ones_too) {
  if (queues.empty()) return false;
  const size_t start = random() % queues.size();
  for (size_t i = 0; i < queues.size(); ++i) {
    const size_t at = (start + i) % queues.size();
    if (!slow_ones_too && latency_of(queues[at].engine) == Latency::kSlow) continue;
    const Operation operation = std::move(queues[at].operations.front());
    queues[at].operations.pop_front();
    if (queues[at].operations.empty()) {
      if (queues[at].id != 0) queue_at.erase(queues[at].id);
      if (at + 1 != queues.size()) {
        queues[at] = std::move(queues.back());
        if (queues[at].id != 0) queue_at[queues[at].id] = at;
      }
      queues.pop_back();
    }
    t_issuer = operation.issuer;
    operation.complete();
    t_issuer = nullptr;
    return true;
  }
  return false;
}

void Cluster::run() {
  t_cluster = this;
  try {
    schedule();
  } catch (const Aborted&) {
  }
  t_issuer = nullptr;
  t_cluster = nullptr;
}

void Cluster::schedule() {
  const auto live = [&] {
    return std::any_of(ctas.begin(), ctas.end(), [](const auto& cta) { return cta->live > 0; });
  };
  while (!aborted && !session->stopped.load(std::memory_order_relaxed)) {
    if (random() % 4 == 0) complete_one(false);
    if (ready.empty()) {
      if (!live()) break;
      if (!complete_one(true)) {
        report_deadlock();
        return;
      }
      continue;
    }
    const size_t at = random() % ready.size();
    Warp& warp = *ready[at];
    Cta& cta = *cta_of_ready[at];
    ready[at] = ready.back();
    cta_of_ready[at] = cta_of_ready.back();
    ready.pop_back();
    cta_of_ready.pop_back();
    warp.queued = false;
    run_warp(cta, warp);
    if (session->findings.too_many()) session->stopped = true;
  }
}

void Cluster::report_deadlock() {
  session->stopped = true;
  std::map<std::pair<Pc, std::string>, std::vector<const Thread*>> waiting;
  int exited = 0;
  for (const auto& cta : ctas) {
    for (const Thread& thread : cta->threads) {
      if (thread.exited) {
        ++exited;
      } else {
        waiting[{thread.waits_at, thread.waits_for ? thread.waits_for : "?"}].push_back(&thread);
      }
    }
  }
  for (const auto& [wait, threads] : waiting) {
    if (!session->findings.count(Kind::kDeadlock, wait.first, nullptr)) continue;
    const Thread& first = *threads.front();
    session->findings.explain(Kind::kDeadlock, wait.first, nullptr,
                              "no thread can go on: " + std::to_string(threads.size()) +
                                  " threads, the first is thread " + std::to_string(first.index) + " of CTA " +
                                  std::to_string(first.cta->index) + ", wait for " + wait.second + "; " +
                                  std::to_string(exited) + " have exited");
  }
}

// --- emu.h
// ------------------------------------------------------------------------------------------------------------

Thread& self() {
  if (t_current == nullptr) std::abort();  // an instruction was executed outside of a kernel
  return *t_current;
}
bool in_kernel() { return t_current != nullptr; }
Cta& cta_of(Thread& thread) { return *thread.cta; }
Cluster& cluster_of(Cta& cta) { return *cta.cluster; }
int index_of(const Thread& thread) { return thread.index; }
int lane_of(const Thread& thread) { return thread.lane(); }
int rank_of(const Cta& cta) { return cta.rank; }
int size_of(const Cluster& cluster) { return static_cast<int>(cluster.ctas.size()); }

Cta& cta_of_rank(Cluster& cluster, int rank) {
  if (rank < 0 || rank >= size_of(cluster)) {
    fatal(Kind::kProtocol, nullptr,
          "CTA rank " + std::to_string(rank) + " of a cluster of " + std::to_string(size_of(cluster)));
  }
  Cta& cta = *cluster.ctas[static_cast<size_t>(rank)];
  if (cta.live == 0) {
    fatal(Kind::kProtocol, nullptr,
          "CTA " + std::to_string(cta.index) + ", rank " + std::to_string(rank) +
              " of the cluster, has exited: its shared memory is no more");
  }
  return cta;
}

void sleep(WaitList& list, const char* what, Pc where) {
  Thread& thread = self();
  thread.waits_for = what;
  thread.waits_at = where;
  list.sleepers.push_back(&thread);
  thread.fiber.suspend();
}

void wake_all(WaitList& list) {
  for (Thread* thread : list.sleepers) thread->cta->cluster->make_ready(*thread);
  list.sleepers.clear();
}

Meeting& warp_meeting() {
  Thread& thread = self();
  return thread.cta->warps[static_cast<size_t>(thread.warp())].meeting;
}

Meeting& warpgroup_meeting() {
  Thread& thread = self();
  const auto at = static_cast<size_t>(thread.index / kWarpgroupThreads);
  if (at >= thread.cta->warpgroups.size()) {
    fatal(Kind::kProtocol, nullptr,
          "thread " + std::to_string(thread.index) + " is in no warpgroup: the CTA has " +
              std::to_string(thread.cta->threads.size()) + " threads");
  }
  return thread.cta->warpgroups[at];
}

bool meet(Meeting& meeting, int lane, const char* op, Pc where, void* slot) {
  if (meeting.arrived == 0) {
    meeting.op = op;
    meeting.where = where;
  } else if (std::strcmp(meeting.op, op) != 0) {
    fatal(Kind::kDivergence, where,
          std::string("lanes that must execute one instruction together execute ") + op + " and " + meeting.op,
          meeting.where);
  } else if (meeting.where != where) {
    report(Kind::kDivergence, where, std::string("lanes execute ") + op + " in different places", meeting.where);
  }
  if (static_cast<size_t>(lane) < std::size(meeting.slots)) meeting.slots[lane] = slot;
  if (++meeting.arrived == meeting.size) return true;
  const uint64_t generation = meeting.generation;
  while (meeting.generation == generation) sleep(meeting.waiting, op, where);
  return false;
}

void leave(Meeting& meeting) {
  Warp& warp = self().cta->warps[static_cast<size_t>(self().warp())];
  if (&meeting == &warp.meeting) warp.conflicts.flush(session().findings);
  meeting.arrived = 0;
  ++meeting.generation;
  wake_all(meeting.waiting);
}

Latency latency_of(Engine engine) { return session().schedule.latency[static_cast<size_t>(engine)]; }

void submit(Engine engine, uint64_t queue, std::function<void()> complete) {
  Cluster& cluster = *t_cluster;
  if (latency_of(engine) == Latency::kPrompt) {
    complete();
    return;
  }
  Operation operation = {&acting(), std::move(complete)};
  // One id per engine and queue: the engines do not know of each other's.
  const uint64_t id = queue == 0 ? 0 : queue * 4 + static_cast<uint64_t>(engine);
  if (id != 0) {
    if (const auto known = cluster.queue_at.find(id); known != cluster.queue_at.end()) {
      cluster.queues[known->second].operations.push_back(std::move(operation));
      return;
    }
    cluster.queue_at[id] = cluster.queues.size();
  }
  cluster.queues.push_back({engine, id, {}});
  cluster.queues.back().operations.push_back(std::move(operation));
}

void at_exit(Cta& cta, std::function<void()> check) { cta.exit_checks.push_back(std::move(check)); }

std::shared_ptr<void>& state_slot(Thread& thread, const void* key) { return slot_of(thread.states, key); }
std::shared_ptr<void>& state_slot(Cta& cta, const void* key) { return slot_of(cta.states, key); }

}  // namespace emu
