#include "core/session.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <thread>

#include "core/machine.h"
#include "core/poison.h"
#include "core/runtime.h"

namespace emu {
namespace {

constexpr size_t kGuardBytes = 64 * 1024;
constexpr unsigned char kPoison = 0xFF;  // NaN in every floating-point format

// Clusters with their stacks are big: they are kept for the next launch.
class ClusterPool {
 public:
  std::unique_ptr<Cluster> take() {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Cluster>();
    std::unique_ptr<Cluster> cluster = std::move(idle_.back());
    idle_.pop_back();
    return cluster;
  }
  void give_back(std::unique_ptr<Cluster> cluster) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(cluster));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Cluster>> idle_;
};

ClusterPool& pool() {
  static ClusterPool& clusters = *new ClusterPool();  // never destroyed: workers may outlive static destruction
  return clusters;
}

}  // namespace

Session*& host_session() {
  static thread_local Session* session = nullptr;
  return session;
}

uint32_t writer_id(uint32_t launch, unsigned cta, int threads, int thread) {
  return launch << 28 | (cta * static_cast<uint32_t>(threads) + static_cast<uint32_t>(thread) + 1);
}

Session::~Session() {
  for (const Allocation& allocation : allocations_) {
    permit(allocation.base, allocation.bytes);
    munmap(allocation.base, allocation.bytes);
  }
}

Tensor& Session::allocate(std::string name, size_t bytes, bool writable, size_t misalignment) {
  const size_t total = kGuardBytes + misalignment + bytes + kGuardBytes;
  void* base = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  allocations_.push_back({base, total});
  std::memset(base, kPoison, total);
  Tensor& tensor = tensors_.emplace_back();
  tensor.name = std::move(name);
  tensor.data = static_cast<unsigned char*>(base) + kGuardBytes + misalignment;
  tensor.bytes = bytes;
  tensor.writable = writable;
  forbid(base, kGuardBytes + misalignment);
  forbid(tensor.data + bytes, kGuardBytes);
  if (writable) {
    tensor.writer.resize(bytes);
    tensor.writer_time.resize(bytes);
    tensor.writer_at.resize(bytes);
  }
  return tensor;
}

Tensor* Session::tensor_of(const void* address) {
  for (Tensor& tensor : tensors_) {
    if (tensor.contains(address)) return &tensor;
  }
  return nullptr;
}

std::string Session::damaged_guards() const {
  std::string damaged;
  if (kSanitized) return damaged;  // who had touched one would not have come here
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto* base = static_cast<const unsigned char*>(allocations_[i].base);
    const unsigned char* end = base + allocations_[i].bytes;
    const auto broken = [](unsigned char byte) { return byte != kPoison; };
    const Tensor& tensor = tensors_[i];
    if (std::any_of(base, static_cast<const unsigned char*>(tensor.data), broken) ||
        std::any_of(static_cast<const unsigned char*>(tensor.data) + tensor.bytes, end, broken)) {
      damaged += (damaged.empty() ? "" : ", ") + tensor.name;
    }
  }
  return damaged;
}

void Session::work(std::span<const unsigned> order, std::atomic<size_t>& next) {
  std::unique_ptr<Cluster> cluster = pool().take();
  for (size_t i = next++; i < order.size() && !stopped; i = next++) {
    const unsigned first_cta = order[i] * static_cast<unsigned>(shape.cluster_ctas);
    cluster->prepare(*this, first_cta, schedule.seed * 1000003 + launches * 7919 + first_cta);
    cluster->run();
  }
  pool().give_back(std::move(cluster));
}

void Session::launch(const LaunchShape& of, void (*kernel)(void*), void* kernel_params, size_t kernel_params_bytes) {
  shape = of;
  entry = kernel;
  params = kernel_params;
  params_bytes = kernel_params_bytes;
  ++launches;
  if (launch_id() == 1) {  // the ids begin anew
    for (Tensor& tensor : tensors_) {
      for (uint32_t& writer : tensor.writer) writer &= (1u << 28) - 1;
    }
  }
  std::vector<unsigned> order(of.ctas / static_cast<unsigned>(of.cluster_ctas));
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(schedule.seed + launches));
  std::atomic<size_t> next = 0;
  std::vector<std::thread> helpers;
  const auto workers = std::min<size_t>(static_cast<size_t>(std::max(schedule.workers, 1)), order.size());
  for (size_t i = 1; i < workers; ++i) helpers.emplace_back([&] { work(order, next); });
  work(order, next);
  for (std::thread& helper : helpers) helper.join();
}

int multiprocessors() { return host_session()->schedule.multiprocessors; }

std::string launch(unsigned ctas, int threads, int smem_bytes, int cluster_ctas, int smem_limit_bytes,
                   void (*entry)(void*), void* params, size_t params_bytes) {
  constexpr int kMaxThreads = 1024, kMaxClusterCtas = 8;
  Session* session = host_session();
  if (session == nullptr) return "no emulated GPU: kernels are launched by emu_run()";
  if (session->stopped) return "a finding ended an earlier launch";
  const auto refused = [](const char* what, int64_t value) { return std::string(what) + " " + std::to_string(value); };
  if (threads < 1 || threads > kMaxThreads || threads % kWarpThreads != 0) return refused("threads:", threads);
  if (cluster_ctas < 1 || cluster_ctas > kMaxClusterCtas) return refused("CTAs of a cluster:", cluster_ctas);
  if (ctas < 1 || ctas % static_cast<unsigned>(cluster_ctas) != 0) return refused("CTAs:", ctas);
  if (smem_bytes < 0 || smem_bytes > smem_limit_bytes) {
    return refused("bytes of shared memory:", smem_bytes) + ", allowed are " + std::to_string(smem_limit_bytes);
  }
  session->launch({ctas, threads, smem_bytes, cluster_ctas}, entry, params, params_bytes);
  return {};
}

}  // namespace emu
