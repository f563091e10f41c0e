// Sums over GPUs (cuda/peers) whose GPUs are parts of one CTA: several sums after each other, in which some may be
// ahead of the others.
#include "launch.cuh"
#include "peers/peer_sum.cuh"
#include "probes/probe.h"
#include "ptx/barrier.cuh"

namespace jaxgemm::probes {
namespace {

constexpr int kPackets = 50, kSums = 5;  // the last warp has lanes without a packet
constexpr uint32_t kSite = 0x9E3779B1;

// `kWhole`: all packets are.
template <class Element, int kRanks, int kPeers, bool kWhole>
struct PeerSums {
  static constexpr int kElems = Packet<Element>::kElems, kElements = kPackets * kElems - (kWhole ? 0 : 1);

  // What the probe writes, and what it uses meanwhile.
  struct Out {
    alignas(16) ptx::FlaggedPair slots[kRanks][2][kRanks][kPackets];
    alignas(16) Element parts[kRanks][kPackets * kElems];
    uint32_t sums_of_cta[kRanks];
    uint32_t found[kSums][kRanks][kPackets * kElems];
  };
  static constexpr int kInWords = kRanks * kPackets * kElems, kOutWords = sizeof(Out) / sizeof(uint32_t);

  static __device__ void run(const uint32_t* in, Out& out) {
    const int rank = static_cast<int>(threadIdx.x) / kPeerThreads,
              thread = static_cast<int>(threadIdx.x) % kPeerThreads;
    const bool moves = thread < kPackets;
    for (int i = 0; moves && i < 2 * kRanks; ++i) out.slots[i / 2][i % 2][rank][thread] = {};
    if (thread == 0) out.sums_of_cta[rank] = 0;
    Peers peers = {{}, &out.slots[rank][0][0][0], &out.sums_of_cta[rank], kRanks, rank, kPackets};
    for (int i = 0; i < kRanks; ++i) peers.slots[i] = &out.slots[i][0][0][0];
    __syncthreads();

    const auto meet = [&] { ptx::barrier_sync(1 + rank, kPeerThreads); };
    for (int sum = 0; sum < kSums; ++sum) {
      for (int i = thread * kElems; moves && i < (thread + 1) * kElems; ++i) {
        const auto number = static_cast<int32_t>(in[rank * kPackets * kElems + i] % 16) - 8 * (sum % 2);
        out.parts[rank][i] = from_number(number + sum);
      }
      meet();
      add_up<Element, kPeers>(peers, out.parts[rank], out.parts[rank], kElements, kWhole, kSite * (sum + 1), 0, thread,
                              meet);
      for (int i = thread * kElems; moves && i < (thread + 1) * kElems; ++i) {
        out.found[sum][rank][i] = to_bits(out.parts[rank][i]);
      }
      meet();
    }
  }

  static __device__ Element from_number(int32_t number) {
    if constexpr (std::is_same_v<Element, int32_t>) {
      return number;
    } else {
      return rounded<Element>(static_cast<float>(number));
    }
  }
};

template <class P>
__global__ void peer_sums_kernel(const uint32_t* in, uint32_t* out) {
  P::run(in, *reinterpret_cast<typename P::Out*>(out));
}

template <class P, int kRanks>
std::string launch_peers(const uint32_t* in, uint32_t* out, void* stream) {
  return launch_kernel(peer_sums_kernel<P>, 1, kRanks * kPeerThreads, 0, stream, in, out);
}

template <class Element, int kRanks, int kPeers, bool kWhole>
constexpr Probe peer_probe(std::string_view name) {
  using P = PeerSums<Element, kRanks, kPeers, kWhole>;
  return {name, P::kInWords, P::kOutWords, &launch_peers<P, kRanks>};
}

constexpr Probe kPeerProbes[] = {
    peer_probe<__nv_bfloat16, 2, 2, true>("peer_sum.bf16.2"),
    peer_probe<__half, 3, 4, false>("peer_sum.f16.3"),
    peer_probe<float, 2, 2, false>("peer_sum.f32.2"),
    peer_probe<int32_t, 5, kMostPeers, true>("peer_sum.s32.5"),
};

}  // namespace

std::span<const Probe> peers_probes() { return kPeerProbes; }

}  // namespace jaxgemm::probes
