// What instructions ask about the other CTAs of a cluster.
#pragma once

#include "core/emu.h"

namespace emu {

// The CTA of this rank in the cluster of `own`; fatal() if there is none or if it has exited.
Cta& peer_of(Cta& own, int rank, const char* what, Pc where);

// Whether any thread of the CTA knows that operation `number` of `agent` is complete.
bool known_in(const Cta& cta, Agent agent, uint32_t number);

}  // namespace emu
