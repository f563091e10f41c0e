// What a launch was found to do wrong, and what it did.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>

#include "core/emu.h"

namespace emu {

const char* name(Kind kind);

struct Finding {
  Kind kind;
  Pc where, other;
  std::string text;  // of the first
  int64_t count = 0;
};

struct Wavefronts {
  int64_t accesses = 0, wavefronts = 0, ideal = 0;
};

// Collected from all OS threads that execute CTAs.
class Findings {
 public:
  // Counts one more; true for the first of its kind at this place, whose text is then set by explain().
  bool count(Kind kind, Pc where, Pc other);
  void explain(Kind kind, Pc where, Pc other, const std::string& text);
  void add_wavefronts(Pc where, const char* what, const Wavefronts& more);
  bool too_many() const { return total_.load(std::memory_order_relaxed) > kEnough; }  // to make it worth to go on

  std::vector<Finding> all() const;
  std::vector<std::tuple<Pc, std::string, Wavefronts>> wavefronts() const;

 private:
  using Key = std::tuple<Kind, Pc, Pc>;
  mutable std::mutex mutex_;
  std::map<Key, Finding> findings_;
  std::map<std::pair<Pc, std::string>, Wavefronts> wavefronts_;
  static constexpr int64_t kEnough = 10000;
  std::atomic<int64_t> total_ = 0;
};

}  // namespace emu
