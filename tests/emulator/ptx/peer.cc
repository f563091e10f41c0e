// Pairs of words with flags: two accesses of 64 bits, each of which is seen as a whole, and in any order.
#include "ptx/peer.cuh"

#include <bit>

#include "core/machine.h"
#include "core/session.h"

namespace emu {

using jaxgemm::ptx::FlaggedPair;
using jaxgemm::ptx::FlaggedWord;

void store_flagged(FlaggedPair* g_dst, const FlaggedPair& pair) {
  touch_global(g_dst, sizeof(*g_dst), sizeof(*g_dst), Access::kAtomic, "st.relaxed.sys", EMU_CALLER);
  for (int i : {1, 0}) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(&g_dst->words[i]), std::bit_cast<uint64_t>(pair.words[i]),
                     __ATOMIC_RELAXED);
  }
}

FlaggedPair load_flagged(const FlaggedPair* g_src) {
  touch_global(g_src, sizeof(*g_src), sizeof(*g_src), Access::kAtomic, "ld.relaxed.sys", EMU_CALLER);
  FlaggedPair pair;
  for (int i : {0, 1}) {
    pair.words[i] = std::bit_cast<FlaggedWord>(
        __atomic_load_n(reinterpret_cast<const uint64_t*>(&g_src->words[i]), __ATOMIC_RELAXED));
  }
  return pair;
}

}  // namespace emu
