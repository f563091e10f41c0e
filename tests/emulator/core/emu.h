// What an emulated instruction is written with: who executes it, how threads meet and wait, and how memory is touched.
//
// One fiber stands for one CUDA thread. A fiber runs until it waits, so that between two waits nothing else happens in
// its cluster; one OS thread runs all CTAs of a cluster. Races are not found by making them happen but by vector
// clocks: an access is a hazard if an earlier conflicting one is not ordered before it, however the fibers were
// scheduled.
//
// Kernel code reaches everything here through the functions of tests/emulator/ptx/ and the headers of
// tests/emulator/include/. Their out-of-line halves take EMU_CALLER, the address in the kernel's code that a finding is
// reported for: they must be called from an always-inline function that the kernel calls, and must not be inlined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#define EMU_INLINE [[gnu::always_inline]] inline
#define EMU_NOINLINE [[gnu::noinline]]
#define EMU_CALLER __builtin_return_address(0)

namespace emu {

using Pc = const void*;

// --- findings
// ---------------------------------------------------------------------------------------------------------

enum class Kind : uint8_t {
  kOutOfBounds,    // outside of every tensor, or of the CTA's shared memory
  kMisaligned,     // an address that the instruction faults on
  kReadOnly,       // a write to an operand
  kRace,           // conflicting accesses that nothing orders: RAW, WAR, WAW
  kUninitialised,  // a read of shared memory or workspace that nobody wrote
  kDeadlock,       // no thread can go on
  kDivergence,     // lanes that must execute one instruction together execute different ones
  kProtocol,       // an instruction used against its rules: the text says which
};

// Notes a finding and goes on. Equal findings (kind, where, other) are counted, the first text is kept.
void report(Kind kind, Pc where, const std::string& text, Pc other = nullptr);
// Notes a finding and ends the launch.
[[noreturn]] void fatal(Kind kind, Pc where, const std::string& text, Pc other = nullptr);

// --- threads
// ----------------------------------------------------------------------------------------------------------

struct Cta;
struct Cluster;
struct Warp;
struct Thread;
struct Warpgroup;

Thread& self();    // the CUDA thread that is executing
bool in_kernel();  // whether there is one

Cta& cta_of(Thread& thread);
Cluster& cluster_of(Cta& cta);
int index_of(const Thread& thread);            // threadIdx.x
int lane_of(const Thread& thread);             // 0..31
int rank_of(const Cta& cta);                   // of the CTA in its cluster: %cluster_ctarank
int size_of(const Cluster& cluster);           // CTAs
Cta& cta_of_rank(Cluster& cluster, int rank);  // fatal() if there is none or if it has exited

// Threads that wait for one thing. sleep() returns when wake_all() was called: the caller checks its condition again.
// `what` is what a deadlock report says of the thread, e.g. "mbarrier wait, parity 1".
struct WaitList {
  std::vector<Thread*> sleepers;
};
void sleep(WaitList& list, const char* what, Pc where);
void wake_all(WaitList& list);

// --- meetings: instructions that several threads execute together
// --------------------------------------------------------

// `size` lanes meet; who comes last runs the instruction for all of them.
struct Meeting {
  int size = 0, arrived = 0;
  const char* op = nullptr;
  Pc where = nullptr;
  uint64_t generation = 0;
  void* slots[128] = {};
  WaitList waiting;
};
Meeting& warp_meeting();       // of the executing thread's warp
Meeting& warpgroup_meeting();  // of its four warps: 128 threads; fatal() if the CTA has no such warpgroup
// True for the thread that came last, who then runs the instruction and calls leave(); false, after the instruction was
// run, for all others. Differing `op`s are fatal(); equal ones from different places are reported as divergence.
bool meet(Meeting& meeting, int lane, const char* op, Pc where, void* slot);
void leave(Meeting& meeting);

// `body` gets one pointer per lane to what that lane passed as `argument`.
template <class Argument, class Body>
void together(Meeting& meeting, int lane, const char* op, Pc where, Argument& argument, Body&& body) {
  if (!meet(meeting, lane, op, where, &argument)) return;
  body([&](int i) -> Argument& { return *static_cast<Argument*>(meeting.slots[i]); });
  leave(meeting);
}
template <class Argument, class Body>
void warp_together(const char* op, Pc where, Argument& argument, Body&& body) {
  together(warp_meeting(), lane_of(self()), op, where, argument, body);
}

// --- order
// ------------------------------------------------------------------------------------------------------------

// Something that accesses memory in an order of its own: a thread, its cp.async copies, the copies that complete on one
// mbarrier, the wgmmas of one warpgroup. Its operations are numbered; later ones complete no earlier than it is known
// that all before are complete.
using Agent = uint32_t;

// What is known to have happened: per agent, the number of the last operation. Joined at every synchronisation.
// `fenced` is the part of it that is also visible to the async proxy (TMA, wgmma), which generic writes become by
// fence.proxy.async. PTX ISA, "Memory Consistency Model", "Proxies".
using Numbers = std::vector<uint32_t>;            // indexed by Agent; missing entries are 0
using Snapshot = std::shared_ptr<const Numbers>;  // shared by all threads that know the same
class Clock {
 public:
  void join(const Clock& other);
  void note(Agent agent, uint32_t number);  // operations of `agent` up to `number` are complete

  struct Half {
    Numbers numbers;
    Snapshot joined;            // the last snapshot that was joined: joining it again changes nothing
    mutable Snapshot snapshot;  // of `numbers`, made when it is first asked for
    void join(const Numbers& other);
    void note(Agent agent, uint32_t number);
    const Snapshot& freeze() const;
  };
  Half seen, fenced;
};

Agent thread_agent(const Thread& thread);    // the thread's own loads and stores
Agent cp_async_agent(const Thread& thread);  // its cp.async copies
Agent bulk_agent(const Thread& thread);      // its bulk copies out of shared memory
Agent new_agent(Cluster& cluster);           // of another hardware queue, e.g. one per mbarrier or warpgroup

void publish(Clock& into);                   // release: what the executing thread knows, itself included
void acquire(const Clock& from);             // acquire
void observe(Agent agent, uint32_t number);  // the executing thread knows that operations up to it completed
void observe(Thread& thread, Agent agent, uint32_t number);
void learn_of_cta(unsigned index,
                  const Snapshot& seen);  // what a thread of another CTA of the grid, no cluster's, knew
void fence_async_proxy();                 // fence.proxy.async by the executing thread

// --- memory
// -----------------------------------------------------------------------------------------------------------

enum class Access : uint8_t { kRead, kWrite, kAtomic };

// Who touches memory, with what knowledge. An asynchronous operation knows what its issuer knew when it was issued.
struct Actor {
  Agent agent;
  uint32_t number;       // of the operation, or the thread's own time
  const Thread* issuer;  // whose knowledge counts
  bool async_proxy;      // sees generic writes only after a proxy fence
  const char* what;      // "load", "ldmatrix", "TMA load": for messages
  Pc where;
};
Actor this_thread(const char* what, Pc where);
Actor thread_actor(Thread& thread, const char* what, Pc where);  // e.g. another lane of a warp-wide instruction
// Of the executing thread's asynchronous operation `number` on `agent`.
Actor async_actor(Agent agent, uint32_t number, bool async_proxy, const char* what, Pc where);

struct SharedAddress {
  Cta* cta = nullptr;
  uint32_t offset = 0;
};
// Finds a pointer into the shared memory of the executing thread's cluster. fatal() if [pointer, pointer + bytes) is
// not inside the shared memory of one CTA, or not aligned.
SharedAddress shared_address(const void* pointer, size_t bytes, size_t alignment, const char* what, Pc where);
// The same by 32-bit address, as descriptors hold it: the offset in the executing thread's own CTA.
SharedAddress shared_address(uint32_t address, size_t bytes, size_t alignment, const char* what, Pc where);
unsigned char* data(SharedAddress address);
// Records the access and reports hazards. To be called when the operation is issued, whenever its bytes move.
void touch_shared(const Actor& actor, SharedAddress address, size_t bytes, Access access);
void count_wavefronts(Pc where, const char* what, int wavefronts, int ideal);  // of one phase of a warp-wide access

// fatal() if not inside one tensor, not aligned, or a write to an operand. Marks what is written as this thread's.
// Atomic accesses are no races with each other.
void touch_global(const void* pointer, size_t bytes, size_t alignment, Access access, const char* what, Pc where);

// --- things that happen later
// -------------------------------------------------------------------------------------------

// Which unit works on an operation. The seed of the schedule makes each of them prompt, slow or in between.
enum class Engine : uint8_t { kCpAsync, kTma, kWgmma, kBulkStore };
enum class Latency : uint8_t { kPrompt, kRandom, kSlow };  // slow: only when no thread can go on without it
Latency latency_of(Engine engine);

// Runs `complete` later: at once if the engine is prompt. Operations with the same non-zero `queue` complete in order.
void submit(Engine engine, uint64_t queue, std::function<void()> complete);

// Called when the last thread of a CTA exits, to find what must not be outstanding then.
void at_exit(Cta& cta, std::function<void()> check);

// State that an instruction group keeps per thread, CTA or cluster, made on first use.
template <class State>
State& state(Thread& thread);
template <class State>
State& state(Cta& cta);
std::shared_ptr<void>& state_slot(Thread& thread, const void* key);
std::shared_ptr<void>& state_slot(Cta& cta, const void* key);

template <class State>
inline const char kStateKey = 0;
template <class State>
State& state(Thread& thread) {
  std::shared_ptr<void>& slot = state_slot(thread, &kStateKey<State>);
  if (!slot) slot = std::make_shared<State>();
  return *static_cast<State*>(slot.get());
}
template <class State>
State& state(Cta& cta) {
  std::shared_ptr<void>& slot = state_slot(cta, &kStateKey<State>);
  if (!slot) slot = std::make_shared<State>();
  return *static_cast<State*>(slot.get());
}

}  // namespace emu
