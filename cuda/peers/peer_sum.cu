#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "launch.cuh"
#include "peer_sum.h"
#include "ptx/peer.cuh"

namespace jaxgemm {
namespace {

// A thread moves 8 bytes at a time, with their flags a pair of words.
constexpr int kPacketBytes = 8, kThreads = 64, kMostCtas = 512;

// What the GPUs that meet share, as one of them sees it. Each has a slot for every packet of every GPU, twice: sums
// take turns, and a GPU that is one sum ahead of another, as it may be, leaves alone what the other one still reads. It
// cannot be two ahead: for that it would need the other one's packets of the sum between.
struct Peers {
  ptx::FlaggedPair* slots[kMostPeers];  // of each GPU: [turn][sender][packet]
  const ptx::FlaggedPair* own_slots;
  uint32_t* sums_of_cta;  // of this one: in how many sums each CTA has taken part
  int count, rank;
  int packets;  // that a sender has slots for
};

// Packets of one sum carry its number, which says that they have arrived, and the number mixed with the call's: the
// sums of another program, or of another call of this one, are taken for nothing else. A pair whose first word has
// arrived and whose second one says otherwise, each time it is looked at, is such a packet.
struct Flags {
  uint32_t first, second;

  __device__ bool of(const ptx::FlaggedPair& pair) const {
    return pair.words[0].flag == first && pair.words[1].flag == second;
  }
  __device__ bool of_another_call(const ptx::FlaggedPair& pair) const {
    return pair.words[0].flag == first && pair.words[1].flag != second;
  }
};
constexpr int kLooksAtAnotherCall = 1 << 20;  // half a second or so

// In words, as an array of elements that is indexed would lie in local memory.
template <class Element>
struct Packet {
  static constexpr int kElems = kPacketBytes / sizeof(Element), kOfWord = 4 / sizeof(Element);
  uint32_t words[2] = {};

  __device__ Element get(int i) const {
    const uint32_t bits = words[i / kOfWord] >> (i % kOfWord * 16);
    Element element;
    memcpy(&element, &bits, sizeof(Element));  // the low bytes
    return element;
  }
  __device__ void set(int i, Element element) {  // where there are zeros
    uint32_t bits = 0;
    memcpy(&bits, &element, sizeof(Element));
    words[i / kOfWord] |= bits << (i % kOfWord * 16);
  }
};

// Elements behind the last one are zeros, and are not written. `whole`: packets are, and begin at multiples of 8 bytes.
template <class Element>
__device__ Packet<Element> load_packet(const Element* g_first, int64_t elements, bool whole) {
  Packet<Element> packet;
  if (whole) {
    const uint2 words = *reinterpret_cast<const uint2*>(g_first);
    return {{words.x, words.y}};
  }
#pragma unroll
  for (int i = 0; i < packet.kElems; ++i) {
    if (i < elements) packet.set(i, g_first[i]);
  }
  return packet;
}

template <class Element>
__device__ void store_packet(Element* g_first, const Packet<Element>& packet, int64_t elements, bool whole) {
  if (whole) {
    *reinterpret_cast<uint2*>(g_first) = {packet.words[0], packet.words[1]};
    return;
  }
#pragma unroll
  for (int i = 0; i < packet.kElems; ++i) {
    if (i < elements) g_first[i] = packet.get(i);
  }
}

__device__ float widened(float x) { return x; }
__device__ float widened(__half x) { return __half2float(x); }
__device__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ uint32_t widened(int32_t x) { return static_cast<uint32_t>(x); }  // whose sums wrap around

template <class Element, class Sum>
__device__ Element rounded(Sum sum) {
  if constexpr (sizeof(Element) == 4) {
    return static_cast<Element>(sum);
  } else if constexpr (std::is_same_v<Element, __half>) {
    return __float2half_rn(sum);
  } else {
    return __float2bfloat16_rn(sum);
  }
}

// Packets are dealt to CTAs in turn, whatever there is to add up: so a packet's slot is always the same CTA's, and what
// a CTA has seen arrive in one sum tells it that the last but one is over. There are kPeers GPUs at most.
template <class Element, int kPeers>
__global__ void __launch_bounds__(kThreads)
    peer_sum_kernel(Peers peers, const Element* g_part, Element* g_sum, int64_t elements, bool whole, uint32_t site) {
  constexpr int kElems = Packet<Element>::kElems;
  const int packets = static_cast<int>((elements + kElems - 1) / kElems);
  const uint32_t number = peers.sums_of_cta[blockIdx.x] + 1;
  const Flags flags = {number, number ^ site};
  const int count = kPeers == 2 ? 2 : peers.count;  // two are all there can be
  const int turn = static_cast<int>(number % 2) * count;
  const auto slot = [&](int sender, int packet) { return (turn + sender) * peers.packets + packet; };
  const int first = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, step = kMostCtas * kThreads;

  for (int i = first; i < packets; i += step) {
    const int64_t at = static_cast<int64_t>(i) * kElems;
    const Packet<Element> own = load_packet(g_part + at, elements - at, whole);
    const ptx::FlaggedPair pair = {{{own.words[0], flags.first}, {own.words[1], flags.second}}};
#pragma unroll
    for (int peer = 0; peer < kPeers; ++peer) {
      if (peer < count && peer != peers.rank) {
        ptx::store_flagged(peers.slots[peer] + slot(peers.rank, i), pair);
      }
    }
  }

  // A warp waits as a whole: lanes behind the last packet wait for that one.
  for (int of_warp = first - lane; of_warp < packets; of_warp += step) {
    const int i = of_warp + lane < packets ? of_warp + lane : packets - 1;
    const int64_t at = static_cast<int64_t>(i) * kElems;
    ptx::FlaggedPair arrived[kPeers];
#pragma unroll
    for (int peer = 0; peer < kPeers; ++peer) {  // all are asked for before the first one is waited for
      if (peer < count && peer != peers.rank) arrived[peer] = ptx::load_flagged(peers.own_slots + slot(peer, i));
    }
    const Packet<Element> own = load_packet(g_part + at, elements - at, whole);
    decltype(widened(Element{})) sums[kElems] = {};
#pragma unroll
    for (int peer = 0; peer < kPeers; ++peer) {
      if (peer >= count) continue;
      Packet<Element> packet = own;
      if (peer != peers.rank) {
        for (int looks = 0; !__all_sync(~0u, flags.of(arrived[peer]));) {
          if (flags.of_another_call(arrived[peer]) && ++looks == kLooksAtAnotherCall) __trap();
          arrived[peer] = ptx::load_flagged(peers.own_slots + slot(peer, i));
        }
        packet = {{arrived[peer].words[0].data, arrived[peer].words[1].data}};
      }
#pragma unroll
      for (int j = 0; j < kElems; ++j) {  // the first is not added to 0: -0 stays -0
        sums[j] = peer == 0 ? widened(packet.get(j)) : sums[j] + widened(packet.get(j));
      }
    }
    Packet<Element> sum;
#pragma unroll
    for (int j = 0; j < kElems; ++j) sum.set(j, rounded<Element>(sums[j]));
    if (of_warp + lane < packets) store_packet(g_sum + at, sum, elements - at, whole);
  }
  __syncthreads();  // all threads have read the number
  if (threadIdx.x == 0) peers.sums_of_cta[blockIdx.x] = number;
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
    const size_t slot_bytes = sizeof(ptx::FlaggedPair) * 2 * count * packets, bytes = slot_bytes + kMostCtas * 4;
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
  const int64_t ctas = std::min<int64_t>((packets + kThreads - 1) / kThreads, kMostCtas);
  const auto address = reinterpret_cast<uintptr_t>(sum.part) | reinterpret_cast<uintptr_t>(sum.sum);
  const auto kernel = peers.count == 2   ? peer_sum_kernel<Element, 2>
                      : peers.count <= 4 ? peer_sum_kernel<Element, 4>
                                         : peer_sum_kernel<Element, kMostPeers>;
  return launch_kernel(kernel, ctas, kThreads, 0, sum.stream, peers, static_cast<const Element*>(sum.part),
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
