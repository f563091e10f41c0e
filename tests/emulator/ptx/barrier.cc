// Named barriers count threads; a call by a part of a warp therefore never completes one.
#include "ptx/barrier.cuh"

#include <array>

#include "core/runtime.h"

namespace emu {
namespace {

constexpr int kNamedBarriers = 16;  // PTX ISA, "bar, barrier"
constexpr int kWarp = 32;

struct NamedBarrier {
  int expected = 0, arrived = 0;
  uint64_t generation = 0;
  Clock arriving, passed;
  WaitList waiting;
  Pc first = nullptr;  // who said how many are expected
};

struct NamedBarriers {
  std::array<NamedBarrier, kNamedBarriers> all;
};

NamedBarrier& barrier_of(int id, int threads, Pc where) {
  if (id < 1 || id >= kNamedBarriers) {
    fatal(Kind::kProtocol, where,
          "named barrier " + std::to_string(id) + ": ids are 1 to 15, and 0 is the barrier of __syncthreads()");
  }
  if (threads <= 0 || threads % kWarp != 0 || threads > static_cast<int>(block_threads())) {
    fatal(Kind::kProtocol, where,
          "named barrier " + std::to_string(id) + " of " + std::to_string(threads) +
              " threads: it must be a multiple of 32, and the CTA has " + std::to_string(block_threads()));
  }
  NamedBarrier& barrier = state<NamedBarriers>(cta_of(self())).all[static_cast<size_t>(id)];
  if (barrier.arrived == 0) {
    barrier.expected = threads;
    barrier.first = where;
  } else if (barrier.expected != threads) {
    report(Kind::kProtocol, where,
           "named barrier " + std::to_string(id) + " of " + std::to_string(threads) +
               " threads, at which others have arrived as one of " + std::to_string(barrier.expected),
           barrier.first);
  }
  return barrier;
}

void arrive(NamedBarrier& barrier) {
  publish(barrier.arriving);
  if (++barrier.arrived < barrier.expected) return;
  barrier.arrived = 0;
  barrier.passed = barrier.arriving;
  ++barrier.generation;
  wake_all(barrier.waiting);
}

}  // namespace

void barrier_sync(int id, int threads) {
  const Pc where = EMU_CALLER;
  NamedBarrier& barrier = barrier_of(id, threads, where);
  const uint64_t generation = barrier.generation;
  arrive(barrier);
  while (barrier.generation == generation) sleep(barrier.waiting, "named barrier", where);
  acquire(barrier.passed);
}

void barrier_arrive(int id, int threads) {
  const Pc where = EMU_CALLER;
  arrive(barrier_of(id, threads, where));
}

}  // namespace emu
