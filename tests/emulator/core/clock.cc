#include "core/clock.h"

#include <algorithm>

namespace emu {
namespace {

bool covers(const Numbers& large, const Numbers& small) {
  if (large.size() < small.size()) return false;
  for (size_t i = 0; i < small.size(); ++i) {
    if (large[i] < small[i]) return false;
  }
  return true;
}

// Threads that knew the same and learn the same share the result: the last few merges are remembered.
Snapshot merge(const Snapshot& a, const Snapshot& b) {
  struct Merge {
    Snapshot a, b, result;
  };
  static thread_local std::array<Merge, 16> recent;
  static thread_local size_t next = 0;
  for (const Merge& known : recent) {
    if (known.a == a && known.b == b) return known.result;
  }
  Snapshot result;
  if (covers(*b, *a)) {
    result = b;
  } else if (covers(*a, *b)) {
    result = a;
  } else {
    auto merged = std::make_shared<Numbers>(*a);
    merged->resize(std::max(a->size(), b->size()));
    for (size_t i = 0; i < b->size(); ++i) (*merged)[i] = std::max((*merged)[i], (*b)[i]);
    result = std::move(merged);
  }
  recent[next++ % recent.size()] = {a, b, result};
  return result;
}

}  // namespace

void Clock::Half::join(const Numbers& other) {
  if (numbers.size() < other.size()) numbers.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) numbers[i] = std::max(numbers[i], other[i]);
  snapshot.reset();
}

void Clock::Half::note(Agent agent, uint32_t number) {
  if (numbers.size() <= agent) numbers.resize(agent + 1);
  if (numbers[agent] >= number) return;
  numbers[agent] = number;
  snapshot.reset();
}

const Snapshot& Clock::Half::freeze() const {
  if (!snapshot) snapshot = std::make_shared<const Numbers>(numbers);
  return snapshot;
}

void Clock::join(const Clock& other) {
  seen.join(other.seen.numbers);
  fenced.join(other.fenced.numbers);
}

// What hardware completed is no generic write: both halves know it.
void Clock::note(Agent agent, uint32_t number) {
  seen.note(agent, number);
  fenced.note(agent, number);
}

void View::join(const Clock::Half& from, Agent first_own) {
  const Snapshot& other = from.freeze();
  base = base && base != other ? merge(base, other) : other;
  for (Agent i = 0; i < kOwnAgents && first_own + i < base->size(); ++i) {
    own[i] = std::max(own[i], (*base)[first_own + i]);
  }
}

void View::note(Agent agent, uint32_t number, Agent first_own) {
  if (agent - first_own < kOwnAgents) {
    own[agent - first_own] = std::max(own[agent - first_own], number);
  } else if (of(agent, first_own) < number) {
    auto changed = base ? std::make_shared<Numbers>(*base) : std::make_shared<Numbers>();
    if (changed->size() <= agent) changed->resize(agent + 1);
    (*changed)[agent] = number;
    base = std::move(changed);
  }
}

void View::publish(Clock::Half& into, Agent first_own) const {
  if (base && into.joined != base) {
    into.join(*base);
    into.joined = base;
  }
  for (Agent i = 0; i < kOwnAgents; ++i) into.note(first_own + i, own[i]);
}

}  // namespace emu
