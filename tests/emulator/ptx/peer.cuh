// Emulates cuda/ptx/peer.cuh.
#pragma once

#include "core/emu.h"
#include "ptx/peer_types.cuh"

namespace emu {
EMU_NOINLINE void store_flagged(jaxgemm::ptx::FlaggedPair* g_dst, const jaxgemm::ptx::FlaggedPair& pair);
EMU_NOINLINE jaxgemm::ptx::FlaggedPair load_flagged(const jaxgemm::ptx::FlaggedPair* g_src);
}  // namespace emu

namespace jaxgemm::ptx {

EMU_INLINE void store_flagged(FlaggedPair* g_dst, const FlaggedPair& pair) { emu::store_flagged(g_dst, pair); }
EMU_INLINE FlaggedPair load_flagged(const FlaggedPair* g_src) { return emu::load_flagged(g_src); }

}  // namespace jaxgemm::ptx
