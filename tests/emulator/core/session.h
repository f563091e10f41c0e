// One call of a kernel's launch(): its memory, its schedule and what was found.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "core/emu.h"
#include "core/findings.h"

namespace emu {

// A buffer in emulated device memory.
struct Tensor {
  std::string name;
  unsigned char* data = nullptr;
  size_t bytes = 0;
  bool writable = false;
  // Per byte of a writable tensor: which launch and thread wrote it last (0: none), when by its own clock, and where.
  std::vector<uint32_t> writer, writer_time;
  std::vector<Pc> writer_at;

  bool contains(const void* address) const {
    const auto* byte = static_cast<const unsigned char*>(address);
    return byte >= data && byte < data + bytes;
  }
};

struct Schedule {
  uint64_t seed = 0;
  int workers = 1;  // OS threads
  bool conflicts = false;
  Latency latency[4] = {};  // by Engine
  int multiprocessors = 3;
};

struct LaunchShape {
  unsigned ctas;
  int threads, smem_bytes, cluster_ctas;
};

// Flags in global memory that threads have raised, and what those knew then.
class Flags {
 public:
  struct Raised {
    uint32_t launch = 0;
    unsigned cta = 0;
    Snapshot seen;
  };
  void raise(const void* flag, Raised raised) {
    std::lock_guard lock(mutex_);
    raised_[flag] = std::move(raised);
  }
  bool find(const void* flag, Raised& raised) {
    std::lock_guard lock(mutex_);
    const auto found = raised_.find(flag);
    if (found == raised_.end()) return false;
    raised = found->second;
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, Raised> raised_;
};

class Session {
 public:
  explicit Session(const Schedule& schedule) : schedule(schedule) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  // Memory of its own, `misalignment` bytes past a 256-byte boundary, between guards; filled with 0xFF.
  Tensor& allocate(std::string name, size_t bytes, bool writable, size_t misalignment = 0);
  Tensor* tensor_of(const void* address);
  std::string damaged_guards() const;  // "" or whose

  // Executes entry(params) as every thread of the grid. "params" may be read by the kernel.
  void launch(const LaunchShape& shape, void (*entry)(void*), void* params, size_t params_bytes);

  const Schedule schedule;
  Findings findings;
  Flags flags;
  std::atomic<bool> stopped = false;
  LaunchShape shape = {};
  void (*entry)(void*) = nullptr;
  void* params = nullptr;
  size_t params_bytes = 0;
  uint32_t launches = 0;
  uint32_t launch_id() const { return (launches - 1) % kLaunchIds + 1; }  // of the current one, for Tensor::writer
  std::atomic<int64_t> switches = 0;

 private:
  static constexpr uint32_t kLaunchIds = 15;  // 0 stands for launches that are over
  void work(std::span<const unsigned> order, std::atomic<size_t>& next);
  struct Allocation {
    void* base;
    size_t bytes;
  };
  std::vector<Allocation> allocations_;
  std::deque<Tensor> tensors_;
};

// Of the OS thread that called launch(), for the stand-ins of the CUDA runtime.
Session*& host_session();

// Which tensor-wide unique writer a thread is, as Tensor::writer holds it: 4 bits of launch, 28 of thread.
uint32_t writer_id(uint32_t launch, unsigned cta, int threads, int thread);
inline uint32_t launch_of(uint32_t writer) { return writer >> 28; }
inline uint32_t thread_of(uint32_t writer) { return (writer & ((1u << 28) - 1)) - 1; }

}  // namespace emu
