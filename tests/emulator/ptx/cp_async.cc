// A thread's copies are numbered by the group that they belong to: groups complete in order as far as anyone can know,
// since nobody can wait for one without waiting for all before it. Copies between two waits are not ordered (PTX ISA,
// "cp.async").
#include "ptx/cp_async.cuh"

#include <algorithm>
#include <cstring>
#include <deque>

#include "ptx/shared_rows.h"

namespace emu {
namespace {

struct Target {
  uint32_t offset, bytes;
  bool overlaps(const Target& other) const {
    return offset < other.offset + other.bytes && other.offset < offset + bytes;
  }
};

struct Group {
  int landing = 0;  // copies that have not written yet
  std::vector<Target> targets;
  Pc where = nullptr;  // of its last copy
};

// A thread's groups that it has not waited for; the last one is open.
struct Copies {
  bool checked_at_exit = false;
  uint32_t committed = 0;  // groups so far
  uint32_t waited = 0;     // of which the thread knows that they are complete
  std::deque<Group> groups = std::deque<Group>(1);
  WaitList waiting;

  uint32_t open_number() const { return committed + 1; }
  Group& group(uint32_t number) { return groups[number - waited - 1]; }
};

// Shared memory is the next CTA's once a CTA has exited, and a copy that nobody waited for may land then.
void check_at_exit(Cta& cta, const Copies& copies, int thread) {
  at_exit(cta, [&copies, thread] {
    for (const Group& group : copies.groups) {
      if (group.targets.empty()) continue;
      report(Kind::kProtocol, group.where,
             "the CTA exits before thread " + std::to_string(thread) + " waited for " +
                 std::to_string(group.targets.size()) + " cp.async copies" +
                 (&group == &copies.groups.back() ? ", which it did not commit" : ""));
      return;
    }
  });
}

Copies& copies_of(Thread& thread) {
  Copies& copies = state<Copies>(thread);
  if (!copies.checked_at_exit) {
    copies.checked_at_exit = true;
    check_at_exit(cta_of(thread), copies, index_of(thread));
  }
  return copies;
}

void check_source(const void* g_src, int bytes, int valid_bytes, Pc where) {
  if (valid_bytes < 0 || valid_bytes > bytes) {
    fatal(Kind::kProtocol, where,
          "cp.async of " + std::to_string(bytes) + " bytes with src-size " + std::to_string(valid_bytes) +
              ", which must be from 0 to " + std::to_string(bytes));
  }
  if (valid_bytes > 0) {
    touch_global(g_src, static_cast<size_t>(valid_bytes), static_cast<size_t>(bytes), Access::kRead, "cp.async", where);
  } else if (reinterpret_cast<uintptr_t>(g_src) % static_cast<uintptr_t>(bytes) != 0) {
    // Where nothing is read the address counts all the same: ptxas adds to it the number of bytes to leave out.
    fatal(Kind::kMisaligned, where,
          "cp.async with src-size 0 from an address that is " +
              std::to_string(reinterpret_cast<uintptr_t>(g_src) % static_cast<uintptr_t>(bytes)) +
              " bytes past a multiple of " + std::to_string(bytes));
  }
}

void check_target(const Copies& copies, const Target& target, Pc where) {
  for (const Group& group : copies.groups) {
    for (const Target& earlier : group.targets) {
      if (!target.overlaps(earlier)) continue;
      report(Kind::kRace, where,
             "WAW: two cp.async copies of one thread write byte " +
                 std::to_string(std::max(target.offset, earlier.offset)) +
                 " of shared memory, and the thread did not wait for the first one",
             group.where);
      return;
    }
  }
}

}  // namespace

void cp_async(void* s_dst, const void* g_src, int bytes, int valid_bytes) {
  const Pc where = EMU_CALLER;
  const auto size = static_cast<size_t>(bytes);
  const SharedAddress to = own_shared_address(s_dst, size, size, "cp.async", where);
  check_source(g_src, bytes, valid_bytes, where);

  Thread& thread = self();
  const Agent agent = cp_async_agent(thread);
  Copies& copies = copies_of(thread);
  const Target target = {to.offset, static_cast<uint32_t>(bytes)};
  check_target(copies, target, where);
  const uint32_t number = copies.open_number();
  touch_shared(async_actor(agent, number, /*async_proxy=*/false, "cp.async", where), to, size, Access::kWrite);

  Group& group = copies.group(number);
  group.targets.push_back(target);
  group.where = where;
  ++group.landing;
  const auto valid = static_cast<size_t>(valid_bytes);
  submit(Engine::kCpAsync, agent + uint64_t{1}, [&copies, &group, to = data(to), g_src, size, valid] {
    std::memcpy(to, g_src, valid);
    std::memset(to + valid, 0, size - valid);
    if (--group.landing == 0) wake_all(copies.waiting);
  });
}

void cp_async_commit() {
  Copies& copies = copies_of(self());
  copies.groups.emplace_back();
  ++copies.committed;
}

void cp_async_wait(uint32_t pending, const char* what) {
  const Pc where = EMU_CALLER;
  Copies& copies = copies_of(self());
  while (copies.committed - copies.waited > pending) {
    while (copies.groups.front().landing > 0) sleep(copies.waiting, what, where);
    copies.groups.pop_front();
    ++copies.waited;
  }
  observe(cp_async_agent(self()), copies.waited);
}

}  // namespace emu
