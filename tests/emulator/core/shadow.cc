#include "core/shadow.h"

#include "core/machine.h"
#include "core/session.h"

namespace emu {
namespace {

std::string describe(const Cta& cta, const Thread& thread) {
  std::string text = "thread " + std::to_string(thread.index) + " of CTA " + std::to_string(cta.index);
  return text;
}

// Agents beyond the threads' own are hardware queues.
std::string describe_agent(const Cta& cta, Agent agent) {
  const Cluster& cluster = *cta.cluster;
  const size_t per_cta = cta.threads.size() * kOwnAgents;
  const size_t rank = agent / per_cta;
  if (rank >= cluster.ctas.size()) return "asynchronous";
  const Cta& owner = *cluster.ctas[rank];
  return describe(owner, owner.threads[agent % per_cta / kOwnAgents]);
}

}  // namespace

void Shadow::reset(size_t bytes) {
  bytes_ = bytes;
  log2_granule_ = 2;
  cells_.assign((bytes + 3) >> 2, Cell{});
  nodes_.assign(1, Node{});
  free_nodes_ = 0;
  generation_ = 1;
  sites_.assign(1, Site{nullptr, "?"});
  for (CachedSite& cached : cache_) cached = {};
}

uint32_t Shadow::site_of(const Actor& actor) {
  CachedSite& cached = cache_[(reinterpret_cast<uintptr_t>(actor.where) ^ reinterpret_cast<uintptr_t>(actor.what)) %
                              (sizeof cache_ / sizeof *cache_)];
  if (cached.where != actor.where || cached.what != actor.what) {
    cached = {actor.where, actor.what, static_cast<uint32_t>(sites_.size())};
    sites_.push_back({actor.where, actor.what});
  }
  return cached.site;
}

// Splits every cell. Histories are copied: each part was accessed when the whole was.
void Shadow::refine(int log2_granule) {
  const size_t parts = size_t{1} << (log2_granule_ - log2_granule);
  std::vector<Cell> finer(cells_.size() * parts);
  for (size_t i = 0; i < finer.size(); ++i) {
    finer[i] = cells_[i / parts];
    finer[i].readers = 0;
    for (uint32_t node = cells_[i / parts].readers; node != 0; node = nodes_[node].next) {
      nodes_.push_back({nodes_[node].read, finer[i].readers});
      finer[i].readers = static_cast<uint32_t>(nodes_.size() - 1);
    }
  }
  cells_ = std::move(finer);
  log2_granule_ = log2_granule;
}

void Shadow::touch(const Cta& cta, const Actor& actor, uint32_t offset, size_t bytes, Access access) {
  int needed = log2_granule_;
  while (needed > 0 && ((offset | bytes) & ((size_t{1} << needed) - 1)) != 0) --needed;
  if (needed < log2_granule_) refine(needed);
  const Epoch epoch = {actor.agent, actor.number, site_of(actor), actor.async_proxy};
  const size_t last = (offset + bytes - 1) >> log2_granule_;
  for (size_t i = offset >> log2_granule_; i <= last; ++i) {
    const auto at = static_cast<uint32_t>(i << log2_granule_);
    if (access == Access::kRead) {
      read(cells_[i], actor, epoch, cta, at);
    } else {
      write(cells_[i], actor, epoch, cta, at);
    }
  }
}

void Shadow::race(const char* hazard, const Actor& actor, const Epoch& earlier, const Cta& cta, uint32_t offset) {
  const Site& site = sites_[earlier.site];
  Findings& findings = cta.cluster->session->findings;
  if (!findings.count(Kind::kRace, actor.where, site.where)) return;
  std::string text = std::string(hazard) + ": " + actor.what + " by " + describe(*actor.issuer->cta, *actor.issuer) +
                     " at byte " + std::to_string(offset) + " of shared memory, after " + site.what + " by " +
                     describe_agent(cta, earlier.agent);
  const bool ordered_but_for_proxy = actor.async_proxy && actor.issuer->knows(earlier.agent, earlier.number, false);
  text += ordered_but_for_proxy ? ": ordered, but without fence.proxy.async" : ": nothing orders them";
  findings.explain(Kind::kRace, actor.where, site.where, text);
}

void Shadow::read(Cell& cell, const Actor& actor, const Epoch& epoch, const Cta& cta, uint32_t offset) {
  if (cell.write.number == 0) {
    Findings& findings = cta.cluster->session->findings;
    if (findings.count(Kind::kUninitialised, actor.where, nullptr)) {
      findings.explain(Kind::kUninitialised, actor.where, nullptr,
                       std::string(actor.what) + " by " + describe(*actor.issuer->cta, *actor.issuer) + " of byte " +
                           std::to_string(offset) + " of shared memory, which nobody wrote");
    }
  } else if (cell.write.agent != actor.agent || cell.write.number > actor.number) {
    const bool through_proxy = actor.async_proxy && !cell.write.async_proxy;
    if (!actor.issuer->knows(cell.write.agent, cell.write.number, through_proxy)) {
      race("RAW", actor, cell.write, cta, offset);
    }
  }
  add_reader(cell, actor, epoch);
}

void Shadow::write(Cell& cell, const Actor& actor, const Epoch& epoch, const Cta& cta, uint32_t offset) {
  // A thread's own accesses are in order, and so are the parts of one copy; the copies of one agent are not.
  const bool in_order = cell.write.agent == actor.agent &&
                        (cell.write.number == actor.number || actor.agent == thread_agent(*actor.issuer));
  if (cell.write.number != 0 && !in_order) {
    const bool through_proxy = actor.async_proxy && !cell.write.async_proxy;
    if (!actor.issuer->knows(cell.write.agent, cell.write.number, through_proxy)) {
      race("WAW", actor, cell.write, cta, offset);
    }
  }
  for (uint32_t node = cell.readers; node != 0; node = nodes_[node].next) {
    const Epoch& read = nodes_[node].read;
    if (read.agent != actor.agent && !actor.issuer->knows(read.agent, read.number, false)) {
      race("WAR", actor, read, cta, offset);
      break;
    }
  }
  forget_readers(cell);
  cell.write = epoch;
}

// Within a generation readers only pile up: a barrier lets the next one drop all that are ordered before it, since who
// is ordered after the next one is ordered after them too.
void Shadow::add_reader(Cell& cell, const Actor& actor, const Epoch& epoch) {
  if (cell.readers != 0) {
    Epoch& last = nodes_[cell.readers].read;
    if (last.agent == epoch.agent) {
      last = epoch;
      return;
    }
  }
  if (cell.generation != generation_) {
    cell.generation = generation_;
    uint32_t* link = &cell.readers;
    while (*link != 0) {
      Node& node = nodes_[*link];
      if (actor.issuer->knows(node.read.agent, node.read.number, false)) {
        const uint32_t dropped = *link;
        *link = node.next;
        node.next = free_nodes_;
        free_nodes_ = dropped;
      } else {
        link = &node.next;
      }
    }
  }
  uint32_t fresh = free_nodes_;
  if (fresh != 0) {
    free_nodes_ = nodes_[fresh].next;
  } else {
    fresh = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back({});
  }
  nodes_[fresh] = {epoch, cell.readers};
  cell.readers = fresh;
}

void Shadow::forget_readers(Cell& cell) {
  while (cell.readers != 0) {
    const uint32_t node = cell.readers;
    cell.readers = nodes_[node].next;
    nodes_[node].next = free_nodes_;
    free_nodes_ = node;
  }
}

}  // namespace emu
