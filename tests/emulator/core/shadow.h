// What is known of each word of a CTA's shared memory: who wrote it last, and who has read it since.
#pragma once

#include "core/emu.h"

namespace emu {

struct Epoch {
  Agent agent = 0;
  uint32_t number = 0;  // 0: never
  uint32_t site = 0;    // index into Shadow's table of places
  bool async_proxy = false;
};

// A place in the kernel's code and what it does there.
struct Site {
  Pc where;
  const char* what;
};

class Shadow {
 public:
  void reset(size_t bytes);  // nothing was written
  // Threads of the CTA have met: reads by threads before are ordered before all that follows.
  void next_generation() { ++generation_; }
  // Reports every unordered conflict. `bytes` lie inside.
  void touch(const Cta& cta, const Actor& actor, uint32_t offset, size_t bytes, Access access);

 private:
  struct Cell {
    Epoch write;
    uint32_t readers = 0;  // list of nodes
    uint32_t generation = 0;
  };
  struct Node {
    Epoch read;
    uint32_t next;
  };

  uint32_t site_of(const Actor& actor);
  void refine(int log2_granule);
  void read(Cell& cell, const Actor& actor, const Epoch& epoch, const Cta& cta, uint32_t offset);
  void write(Cell& cell, const Actor& actor, const Epoch& epoch, const Cta& cta, uint32_t offset);
  void add_reader(Cell& cell, const Actor& actor, const Epoch& epoch);
  void forget_readers(Cell& cell);
  void race(const char* hazard, const Actor& actor, const Epoch& earlier, const Cta& cta, uint32_t offset);

  // One cell stands for 2^log2_granule_ bytes: words, until something narrower is accessed.
  int log2_granule_ = 2;
  size_t bytes_ = 0;
  uint32_t generation_ = 1;
  std::vector<Cell> cells_;
  std::vector<Node> nodes_;
  uint32_t free_nodes_ = 0;
  std::vector<Site> sites_;
  struct CachedSite {
    Pc where = nullptr;
    const char* what = nullptr;
    uint32_t site = 0;
  };
  CachedSite cache_[256];
};

}  // namespace emu
