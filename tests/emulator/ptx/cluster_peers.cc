#include "ptx/cluster_peers.h"

#include <algorithm>

#include "core/machine.h"

namespace emu {

Cta& peer_of(Cta& own, int rank, const char* what, Pc where) {
  const auto& ctas = own.cluster->ctas;
  if (rank < 0 || rank >= static_cast<int>(ctas.size())) {
    fatal(Kind::kProtocol, where,
          std::string(what) + ": CTA rank " + std::to_string(rank) + " of a cluster of " + std::to_string(ctas.size()));
  }
  Cta& peer = *ctas[static_cast<size_t>(rank)];
  if (peer.live == 0) {
    fatal(
        Kind::kProtocol, where,
        std::string(what) + ": the CTA of rank " + std::to_string(rank) + " has exited, its shared memory is no more");
  }
  return peer;
}

bool known_in(const Cta& cta, Agent agent, uint32_t number) {
  return std::any_of(cta.threads.begin(), cta.threads.end(),
                     [&](const Thread& thread) { return thread.knows(agent, number, false); });
}

}  // namespace emu
