// The barrier of a cluster, and addresses in the shared memory of its CTAs. A thread that exits without having arrived
// counts as arrived on the GPU; here it does not, so that who waits for it is reported as a deadlock.
#include "ptx/cluster.cuh"

#include <cstring>

#include "core/runtime.h"
#include "ptx/address.cuh"
#include "ptx/cluster_peers.h"
#include "ptx/mbarrier_state.h"
#include "ptx/shared_rows.h"

namespace emu {
namespace {

struct ClusterBarrier {
  unsigned arrived = 0;
  uint64_t generation = 0;
  Clock arriving, passed;
  WaitList waiting;
};

struct SharedBarrier {  // one object in all CTAs of a cluster
  std::shared_ptr<ClusterBarrier> barrier;
};

struct Arrival {
  bool pending = false;  // arrived and not waited
  uint64_t generation = 0;
};

ClusterBarrier& barrier_of(Cta& cta, Pc where) {
  SharedBarrier& own = state<SharedBarrier>(cta);
  if (!own.barrier) {
    own.barrier = std::make_shared<ClusterBarrier>();
    for (int rank = 0; rank < size_of(cluster_of(cta)); ++rank) {
      state<SharedBarrier>(peer_of(cta, rank, "barrier.cluster", where)).barrier = own.barrier;
    }
  }
  return *own.barrier;
}

}  // namespace

int cluster_ctarank() { return rank_of(cta_of(self())); }

void cluster_arrive() {
  const Pc where = EMU_CALLER;
  Cta& cta = cta_of(self());
  ClusterBarrier& barrier = barrier_of(cta, where);
  Arrival& arrival = state<Arrival>(self());
  if (arrival.pending) fatal(Kind::kProtocol, where, "barrier.cluster.arrive twice without barrier.cluster.wait");
  arrival = {true, barrier.generation};
  publish(barrier.arriving);
  if (++barrier.arrived < block_threads() * static_cast<unsigned>(size_of(cluster_of(cta)))) return;
  barrier.arrived = 0;
  barrier.passed = barrier.arriving;
  ++barrier.generation;
  wake_all(barrier.waiting);
}

void cluster_wait() {
  const Pc where = EMU_CALLER;
  ClusterBarrier& barrier = barrier_of(cta_of(self()), where);
  Arrival& arrival = state<Arrival>(self());
  if (!arrival.pending) fatal(Kind::kProtocol, where, "barrier.cluster.wait without barrier.cluster.arrive");
  while (barrier.generation == arrival.generation) sleep(barrier.waiting, "barrier.cluster.wait", where);
  arrival.pending = false;
  acquire(barrier.passed);
}

void store_async(unsigned& s_word, unsigned value, jaxgemm::ptx::Mbarrier& s_barrier, int cta_rank) {
  const Pc where = EMU_CALLER;
  constexpr const char* kWhat = "st.async";
  SharedAddress word = own_shared_address(&s_word, sizeof(unsigned), alignof(unsigned), kWhat, where);
  SharedAddress at = mbarrier_address(&s_barrier, kWhat, where);
  word.cta = at.cta = &peer_of(*word.cta, cta_rank, kWhat, where);
  MbarrierState& barrier = mbarrier_reached(at, kWhat, where);
  const uint32_t number = barrier.issue_copy(where);
  touch_shared(async_actor(barrier.agent, number, /*async_proxy=*/false, kWhat, where), word, sizeof(unsigned),
               Access::kWrite);
  submit(Engine::kTma, 0, [word, value, &barrier, number, where] {
    std::memcpy(data(word), &value, sizeof value);
    barrier.complete_copy(number, sizeof value, where);
  });
}

void* map_shared_rank(const void* s_pointer, int cta_rank) {
  const Pc where = EMU_CALLER;
  const SharedAddress own = own_shared_address(s_pointer, 1, 1, "mapa", where);
  return data({&peer_of(*own.cta, cta_rank, "mapa", where), own.offset});
}

uint32_t address_in_cta(const void* s_pointer) {
  const Pc where = EMU_CALLER;
  return own_shared_address(s_pointer, 1, 1, "an address of shared memory", where).offset;
}

}  // namespace emu
