#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "launch.cuh"
#include "peer_sum.cuh"
#include "peer_sum.h"

namespace jaxgemm {
namespace {

template <class Element, int kPeers>
__global__ void __launch_bounds__(kPeerThreads)
    peer_sum_kernel(Peers peers, const Element* g_part, Element* g_sum, int64_t elements, bool whole, uint32_t site) {
  add_up<Element, kPeers>(peers, g_part, g_sum, elements, whole, site, static_cast<int>(blockIdx.x),
                          static_cast<int>(threadIdx.x), [] { __syncthreads(); });
}

std::string in_words(const char* what, cudaError_t status) {
  (void)cudaGetLastError();  // reported here, and not to be found again by the next caller
  return std::string(what) + ": " + cudaGetErrorString(status);
}

// Leaves the thread as it was: its device, and whether it may allocate while another thread's stream records a graph.
class OtherDevices {
 public:
  OtherDevices() {
    (void)cudaGetDevice(&device_);
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  ~OtherDevices() {
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    (void)cudaSetDevice(device_);
  }
  OtherDevices(const OtherDevices&) = delete;
  OtherDevices& operator=(const OtherDevices&) = delete;

 private:
  int device_ = 0;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The memory that GPUs meet in, which is never given back: a graph may hold its addresses as long as the process lives.
class Meeting {
 public:
  std::string prepare(std::span<const int64_t> devices) {
    const OtherDevices others;
    const auto count = static_cast<int>(devices.size());
    const auto packets = static_cast<int>((most_peer_bytes(count) + kPacketBytes - 1) / kPacketBytes);
    const size_t slot_bytes = sizeof(ptx::FlaggedPair) * 2 * count * packets, bytes = slot_bytes + kMostPeerCtas * 4;
    std::array<char*, kMostPeers> memory = {};
    for (int rank = 0; rank < count; ++rank) {
      std::string error = allocate(devices, rank, bytes, memory[rank]);
      if (error.empty()) continue;
      for (char* given : memory) (void)cudaFree(given);
      return error;
    }
    for (int rank = 0; rank < count; ++rank) {
      Peers& peers = peers_[rank];
      for (int i = 0; i < count; ++i) peers.slots[i] = reinterpret_cast<ptx::FlaggedPair*>(memory[i]);
      peers.own_slots = peers.slots[rank];
      peers.sums_of_cta = reinterpret_cast<uint32_t*>(memory[rank] + slot_bytes);
      peers.count = count;
      peers.rank = rank;
      peers.packets = packets;
    }
    return {};
  }

  const Peers& peers(size_t rank) const { return peers_[rank]; }

 private:
  // Zeroed, on a stream of its own: nothing that the GPU does at the time is waited for.
  static std::string allocate(std::span<const int64_t> devices, int rank, size_t bytes, char*& memory) {
    const auto device = static_cast<int>(devices[rank]);
    if (cudaError_t status = cudaSetDevice(device); status != cudaSuccess) return in_words("cudaSetDevice", status);
    for (int64_t peer : devices) {
      if (peer == device) continue;
      const cudaError_t status = cudaDeviceEnablePeerAccess(static_cast<int>(peer), 0);
      if (status != cudaSuccess && status != cudaErrorPeerAccessAlreadyEnabled) {
        return in_words("cudaDeviceEnablePeerAccess", status);
      }
      (void)cudaGetLastError();
    }
    cudaStream_t stream = nullptr;
    cudaError_t status = cudaMalloc(&memory, bytes);
    if (status != cudaSuccess) return in_words("cudaMalloc", status);
    status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (status == cudaSuccess) status = cudaMemsetAsync(memory, 0, bytes, stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
    return status == cudaSuccess ? "" : in_words("cudaMemsetAsync", status);
  }

  std::array<Peers, kMostPeers> peers_ = {};
};

// Those that have been prepared, by the devices that meet.
class Meetings {
 public:
  std::string find(std::span<const int64_t> devices, const Meeting*& meeting) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Meeting>& known = known_[{devices.begin(), devices.end()}];
    if (known == nullptr) {
      auto made = std::make_unique<Meeting>();
      if (std::string error = made->prepare(devices); !error.empty()) return error;
      known = std::move(made);
    }
    meeting = known.get();
    return {};
  }

 private:
  std::mutex mutex_;
  std::map<std::vector<int64_t>, std::unique_ptr<Meeting>> known_;
};

Meetings& meetings() {
  static auto* all = new Meetings;  // outlives what the process destroys at its end
  return *all;
}

template <class Element>
std::string launch(const PeerSum& sum, const Peers& peers) {
  constexpr int kElems = Packet<Element>::kElems;
  const int64_t packets = (sum.elements + kElems - 1) / kElems;
  const int64_t ctas = std::min<int64_t>((packets + kPeerThreads - 1) / kPeerThreads, kMostPeerCtas);
  const auto address = reinterpret_cast<uintptr_t>(sum.part) | reinterpret_cast<uintptr_t>(sum.sum);
  const auto kernel = peers.count == 2   ? peer_sum_kernel<Element, 2>
                      : peers.count <= 4 ? peer_sum_kernel<Element, 4>
                                         : peer_sum_kernel<Element, kMostPeers>;
  return launch_kernel(kernel, ctas, kPeerThreads, 0, sum.stream, peers, static_cast<const Element*>(sum.part),
                       static_cast<Element*>(sum.sum), sum.elements,
                       address % kPacketBytes == 0 && sum.elements % kElems == 0, sum.site);
}

}  // namespace

bool peers_reach(std::span<const int64_t> devices) {
  for (int64_t device : devices) {
    for (int64_t peer : devices) {
      int reaches = 1;
      if (device == peer) continue;
      if (cudaDeviceCanAccessPeer(&reaches, static_cast<int>(device), static_cast<int>(peer)) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
      }
      if (reaches == 0) return false;
    }
  }
  return true;
}

std::string why_no_peer_sum(std::span<const int64_t> devices, DType dtype, int64_t elements) {
  const auto peers = static_cast<int64_t>(devices.size());
  const std::vector<int64_t> all(devices.begin(), devices.end());
  const auto twice = [&](int64_t device) { return std::count(all.begin(), all.end(), device) != 1; };
  if (peers < 2 || peers > kMostPeers || std::any_of(all.begin(), all.end(), twice)) {
    return "sums are over 2 to " + std::to_string(kMostPeers) + " different GPUs, not over " + std::to_string(peers);
  }
  if (!adds_up_over_peers(dtype)) return "sums are not of " + std::string(name(dtype));
  if (elements * size_bytes(dtype) > most_peer_bytes(peers)) {
    return "parts of sums over " + std::to_string(peers) + " GPUs have " + std::to_string(most_peer_bytes(peers)) +
           " bytes at most, not " + std::to_string(elements * size_bytes(dtype));
  }
  return {};
}

std::string prepare_peers(std::span<const int64_t> devices) {
  const Meeting* meeting = nullptr;
  return meetings().find(devices, meeting);
}

std::string peer_sum(const PeerSum& sum) {
  if (sum.elements == 0) return {};
  const auto found = std::find(sum.devices.begin(), sum.devices.end(), sum.device);
  if (found == sum.devices.end()) return "it is not for GPU " + std::to_string(sum.device);
  const Meeting* meeting = nullptr;
  if (std::string error = meetings().find(sum.devices, meeting); !error.empty()) return error;
  const Peers& peers = meeting->peers(static_cast<size_t>(found - sum.devices.begin()));
  switch (sum.dtype) {
    case DType::kF32: return launch<float>(sum, peers);
    case DType::kF16: return launch<__half>(sum, peers);
    case DType::kBF16: return launch<__nv_bfloat16>(sum, peers);
    default: return launch<int32_t>(sum, peers);
  }
}

}  // namespace jaxgemm
