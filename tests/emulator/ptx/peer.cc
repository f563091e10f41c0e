// Pairs of words with flags: two accesses of 64 bits, each of which is seen as a whole, and in any order. So of many
// pairs one word, the first or the second, is seen a look later than the other.
#include "ptx/peer.cuh"

#include <bit>
#include <map>
#include <mutex>

#include "core/machine.h"
#include "core/session.h"

namespace emu {
namespace {

using jaxgemm::ptx::FlaggedPair;
using jaxgemm::ptx::FlaggedWord;

// What the next look at a pair still finds of it.
struct Late {
  unsigned launch;
  int word;
  FlaggedWord before;
};

std::mutex late_mutex;
std::map<std::pair<const Session*, const FlaggedPair*>, Late> late_words;

FlaggedWord load_word(const FlaggedPair* g_src, int i) {
  return std::bit_cast<FlaggedWord>(
      __atomic_load_n(reinterpret_cast<const uint64_t*>(&g_src->words[i]), __ATOMIC_RELAXED));
}

}  // namespace

void store_flagged(FlaggedPair* g_dst, const FlaggedPair& pair) {
  touch_global(g_dst, sizeof(*g_dst), sizeof(*g_dst), Access::kAtomic, "st.relaxed.sys", EMU_CALLER);
  const std::lock_guard lock(late_mutex);
  const uint32_t which =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(g_dst) / sizeof(*g_dst)) + pair.words[0].flag;
  const auto key = std::pair(static_cast<const Session*>(&session()), static_cast<const FlaggedPair*>(g_dst));
  late_words.erase(key);
  if (which % 4 < 2) {
    const int word = static_cast<int>(which % 4);
    late_words[key] = {session().launches, word, load_word(g_dst, word)};
  }
  for (int i : {0, 1}) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(&g_dst->words[i]), std::bit_cast<uint64_t>(pair.words[i]),
                     __ATOMIC_RELAXED);
  }
}

FlaggedPair load_flagged(const FlaggedPair* g_src) {
  touch_global(g_src, sizeof(*g_src), sizeof(*g_src), Access::kAtomic, "ld.relaxed.sys", EMU_CALLER);
  const std::lock_guard lock(late_mutex);
  FlaggedPair pair = {{load_word(g_src, 0), load_word(g_src, 1)}};
  if (auto late = late_words.find({&session(), g_src}); late != late_words.end()) {
    if (late->second.launch == session().launches) pair.words[late->second.word] = late->second.before;
    late_words.erase(late);
  }
  return pair;
}

}  // namespace emu
