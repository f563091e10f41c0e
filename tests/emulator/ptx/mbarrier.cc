#include "ptx/mbarrier.cuh"

#include <cstring>
#include <map>

#include "core/machine.h"
#include "ptx/cluster_peers.h"
#include "ptx/mbarrier_state.h"
#include "ptx/shared_rows.h"

namespace emu {
namespace {

using jaxgemm::ptx::kMbarrierMaxCount;
using jaxgemm::ptx::kMbarrierMaxTxBytes;

struct Mbarriers {  // of a CTA, by offset
  std::map<uint32_t, MbarrierState> all;
  WaitList any;  // in the first CTA of a cluster: threads that look at several mbarriers in turn
};

WaitList& any_of_cluster(Cta& cta) { return state<Mbarriers>(*cluster_of(cta).ctas.front()).any; }

// What a thread initialised and has not fenced.
struct Unfenced {
  std::vector<MbarrierState*> barriers;
};

// Whether the thread's last look at an mbarrier found the phase incomplete, and it has not arrived anywhere since.
struct LastLook {
  bool in_vain = false;
};

std::string describe(const MbarrierState& barrier) {
  return "the mbarrier at byte " + std::to_string(barrier.at.offset) + " of shared memory";
}

MbarrierState& find(SharedAddress address, const char* what, Pc where) {
  auto& all = state<Mbarriers>(*address.cta).all;
  const auto known = all.find(address.offset);
  if (known == all.end() || !known->second.alive) {
    fatal(Kind::kProtocol, where,
          std::string(what) + ": no mbarrier was initialised at byte " + std::to_string(address.offset) +
              " of shared memory");
  }
  return known->second;
}

// When a CTA exits, its shared memory becomes another one's: all that reaches it must be known to be over.
void check_at_exit(Cta& cta) {
  at_exit(cta, [&cta] {
    const std::string who = "the CTA of rank " + std::to_string(rank_of(cta)) + " exits ";
    for (const auto& [offset, barrier] : state<Mbarriers>(cta).all) {
      if (barrier.issued > 0 && !known_in(cta, barrier.agent, barrier.issued)) {
        report(Kind::kProtocol, barrier.last_copy,
               who + "and none of its threads has waited for the last copy that completes on " + describe(barrier));
      }
      for (const auto& [agent, arrival] : barrier.remote) {
        if (known_in(cta, agent, arrival.number)) continue;
        report(Kind::kProtocol, arrival.where,
               who + "and nothing orders that behind an arrival of another CTA at " + describe(barrier));
      }
    }
  });
}

void make_visible() {
  for (MbarrierState* barrier : state<Unfenced>(self()).barriers) barrier->visible = true;
  state<Unfenced>(self()).barriers.clear();
}

uint32_t check_parity(uint32_t parity, Pc where) {
  if (parity > 1) fatal(Kind::kProtocol, where, "mbarrier wait for parity " + std::to_string(parity));
  return parity;
}

void sleep_until_complete(MbarrierState& barrier, uint32_t parity, Pc where) {
  const uint32_t phase = barrier.phases;
  while (barrier.phases == phase) {
    sleep(barrier.waiting, parity == 0 ? "mbarrier wait, parity 0" : "mbarrier wait, parity 1", where);
  }
  if (barrier.phases - phase > 1) {
    report(Kind::kProtocol, where,
           describe(barrier) + " completed another phase while thread " + std::to_string(index_of(self())) +
               " was waiting for one of parity " + std::to_string(parity) + ": the GPU's wait can miss it for ever");
  }
}

}  // namespace

// --- the state -------------------------------------------------------------------------------------------------------

void MbarrierState::settle() {
  if (pending > 0 || tx_bytes != 0) return;
  arriving.note(agent, landed);
  passed = arriving;
  pending = count;
  ++phases;
  wake_all(waiting);
  wake_all(any_of_cluster(*at.cta));
}

void MbarrierState::check_tx(Pc where) {
  if (tx_bytes > int64_t{kMbarrierMaxTxBytes} || -tx_bytes > int64_t{kMbarrierMaxTxBytes}) {
    report(Kind::kProtocol, where,
           describe(*this) + " expects " + std::to_string(tx_bytes) + " bytes: beyond 2^20 - 1 its count overflows");
  }
}

void MbarrierState::arrive(Pc where) {
  if (pending == 0) {
    report(Kind::kProtocol, where,
           describe(*this) + " counts " + std::to_string(count) + " arrivals, which are in; it waits for " +
               std::to_string(tx_bytes) + " bytes, and thread " + std::to_string(index_of(self())) + " arrives again");
    return;
  }
  state<LastLook>(self()).in_vain = false;
  publish(arriving);
  --pending;
  settle();
}

void MbarrierState::expect(uint32_t bytes, Pc where) {
  tx_bytes += bytes;
  check_tx(where);
}

uint32_t MbarrierState::issue_copy(Pc where) {
  last_copy = where;
  return ++issued;
}

void MbarrierState::complete_copy(uint32_t number, uint32_t bytes, Pc where) {
  landed_early.insert(number);
  while (!landed_early.empty() && *landed_early.begin() == landed + 1) {
    landed_early.erase(landed_early.begin());
    ++landed;
  }
  tx_bytes -= bytes;
  check_tx(where);
  settle();
}

SharedAddress mbarrier_address(const void* s_barrier, const char* what, Pc where) {
  return own_shared_address(s_barrier, sizeof(Mbarrier), alignof(Mbarrier), what, where);
}

MbarrierState& mbarrier_at(SharedAddress address, const char* what, Pc where) {
  MbarrierState& barrier = find(address, what, where);
  touch_shared(this_thread(what, where), address, sizeof(Mbarrier), Access::kRead);
  return barrier;
}

MbarrierState& mbarrier_reached(SharedAddress address, const char* what, Pc where) {
  MbarrierState& barrier = mbarrier_at(address, what, where);
  if (!barrier.visible) {
    report(Kind::kProtocol, where,
           std::string(what) + " reaches " + describe(barrier) + ", which thread " +
               std::to_string(index_of(*barrier.initialiser)) + " of the CTA of rank " +
               std::to_string(rank_of(*address.cta)) +
               " initialised without fence.mbarrier_init or fence.proxy.async behind it");
  }
  return barrier;
}

// --- the instructions ------------------------------------------------------------------------------------------------

namespace {

// Orders ordinary accesses as well, which on a GPU only mbarrier_arrive_cluster() does.
void arrive_remote(Mbarrier& s_barrier, int cta_rank, Pc where) {
  constexpr const char* kWhat = "mbarrier.arrive of another CTA";
  SharedAddress at = mbarrier_address(&s_barrier, kWhat, where);
  at.cta = &peer_of(*at.cta, cta_rank, kWhat, where);
  MbarrierState& barrier = mbarrier_reached(at, kWhat, where);
  if (at.cta != &cta_of(self())) barrier.remote[thread_agent(self())] = {this_thread(kWhat, where).number, where};
  barrier.arrive(where);
}

void wait(Mbarrier& s_barrier, uint32_t parity, Pc where) {
  constexpr const char* kWhat = "mbarrier.try_wait";
  MbarrierState& barrier = mbarrier_at(mbarrier_address(&s_barrier, kWhat, where), kWhat, where);
  state<LastLook>(self()).in_vain = false;
  if (barrier.parity() == check_parity(parity, where)) sleep_until_complete(barrier, parity, where);
  acquire(barrier.passed);
}

}  // namespace

void mbarrier_init(Mbarrier& s_barrier, int count) {
  const Pc where = EMU_CALLER;
  const SharedAddress at = mbarrier_address(&s_barrier, "mbarrier.init", where);
  if (count < 1 || static_cast<uint32_t>(count) > kMbarrierMaxCount) {
    fatal(Kind::kProtocol, where, "mbarrier.init with a count of " + std::to_string(count) + ": 1 to 2^20 - 1");
  }
  auto& all = state<Mbarriers>(*at.cta).all;
  if (all.empty()) check_at_exit(*at.cta);
  MbarrierState& barrier = all[at.offset];
  if (barrier.alive) {
    report(Kind::kProtocol, where, describe(barrier) + " is initialised again without mbarrier.inval");
  }
  barrier = MbarrierState();
  barrier.at = at;
  barrier.count = barrier.pending = static_cast<uint32_t>(count);
  barrier.alive = true;
  barrier.initialiser = &self();
  barrier.agent = new_agent(cluster_of(*at.cta));
  touch_shared(this_thread("mbarrier.init", where), at, sizeof(Mbarrier), Access::kWrite);
  std::memset(data(at), 0xFF, sizeof(Mbarrier));
  state<Unfenced>(self()).barriers.push_back(&barrier);
}

void mbarrier_invalidate(Mbarrier& s_barrier) {
  const Pc where = EMU_CALLER;
  const SharedAddress at = mbarrier_address(&s_barrier, "mbarrier.inval", where);
  MbarrierState& barrier = mbarrier_at(at, "mbarrier.inval", where);
  if (barrier.landed != barrier.issued || !barrier.waiting.sleepers.empty()) {
    report(Kind::kProtocol, where, "mbarrier.inval of " + describe(barrier) + ", which copies or threads still need");
  }
  barrier.alive = false;
  touch_shared(this_thread("mbarrier.inval", where), at, sizeof(Mbarrier), Access::kWrite);
}

void fence_mbarrier_init() { make_visible(); }

void fence_proxy_async() {
  make_visible();
  fence_async_proxy();
}

void mbarrier_arrive(Mbarrier& s_barrier) {
  const Pc where = EMU_CALLER;
  constexpr const char* kWhat = "mbarrier.arrive";
  mbarrier_at(mbarrier_address(&s_barrier, kWhat, where), kWhat, where).arrive(where);
}

void mbarrier_arrive_remote(Mbarrier& s_barrier, int cta_rank) { arrive_remote(s_barrier, cta_rank, EMU_CALLER); }
void mbarrier_arrive_cluster(Mbarrier& s_barrier, int cta_rank) { arrive_remote(s_barrier, cta_rank, EMU_CALLER); }

void mbarrier_expect_tx(Mbarrier& s_barrier, uint32_t bytes) {
  const Pc where = EMU_CALLER;
  constexpr const char* kWhat = "mbarrier.expect_tx";
  mbarrier_at(mbarrier_address(&s_barrier, kWhat, where), kWhat, where).expect(bytes, where);
}

void mbarrier_arrive_expect_tx(Mbarrier& s_barrier, uint32_t bytes) {
  const Pc where = EMU_CALLER;
  constexpr const char* kWhat = "mbarrier.arrive.expect_tx";
  MbarrierState& barrier = mbarrier_at(mbarrier_address(&s_barrier, kWhat, where), kWhat, where);
  barrier.expect(bytes, where);
  barrier.arrive(where);
}

// Kernels poll in loops, which must give way to other threads here, or look once and go on. So a first look returns at
// once, and a second one in vain waits.
bool mbarrier_try_wait(Mbarrier& s_barrier, uint32_t parity) {
  const Pc where = EMU_CALLER;
  constexpr const char* kWhat = "mbarrier.try_wait";
  MbarrierState& barrier = mbarrier_at(mbarrier_address(&s_barrier, kWhat, where), kWhat, where);
  bool& in_vain = state<LastLook>(self()).in_vain;
  if (barrier.parity() == check_parity(parity, where)) {
    if (!in_vain) {
      in_vain = true;
      return false;
    }
    sleep(any_of_cluster(cta_of(self())), "mbarrier.try_wait", where);
    if (barrier.parity() == parity) return false;
  }
  in_vain = false;
  acquire(barrier.passed);
  return true;
}

void mbarrier_wait(Mbarrier& s_barrier, uint32_t parity) { wait(s_barrier, parity, EMU_CALLER); }
void mbarrier_wait_cluster(Mbarrier& s_barrier, uint32_t parity) { wait(s_barrier, parity, EMU_CALLER); }

}  // namespace emu
