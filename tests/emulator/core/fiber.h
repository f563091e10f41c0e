// A fiber: a stack of its own and a context switch that costs a few nanoseconds.
#pragma once

#include <cstddef>

namespace emu {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr size_t kStackBytes = 256 * 1024;  // AddressSanitizer pads every variable
#else
inline constexpr size_t kStackBytes = 64 * 1024;
#endif

// Stacks of equal size in one piece of address space, each above a page that faults.
class Stacks {
 public:
  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks();
  void grow(int count);                                                  // to at least that many
  char* bottom(int index) const { return base_ + index * kStackBytes; }  // lowest address, guard page included
  bool contains(const void* address) const {
    const auto* byte = static_cast<const char*>(address);
    return byte >= base_ && byte < base_ + count_ * kStackBytes;
  }

 private:
  char* base_ = nullptr;
  int count_ = 0;
};

class Fiber {
 public:
  // Makes resume() start `entry(argument)`, which must never return: it ends with suspend() when all is done.
  void start(char* stack_bottom, void (*entry)(void*), void* argument);
  void resume();   // by the scheduler: runs the fiber until it suspends
  void suspend();  // by the fiber: back to where resume() was called

  // Switched to for the first time: what start() was told. For the assembly's trampoline only.
  void run();

 private:
  void* stack_pointer_ = nullptr;
  void* resumer_ = nullptr;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  char* stack_bottom_ = nullptr;
  // What AddressSanitizer keeps of a stack that is switched away from.
  void* fake_stack_ = nullptr;
  const void* resumer_bottom_ = nullptr;
  size_t resumer_bytes_ = 0;
};

}  // namespace emu
