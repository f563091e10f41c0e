// What a GPU does to add up its part and those of others (peer_sum.h): the code of one CTA.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "gemm.h"
#include "peers/peer_sum.h"
#include "ptx/peer.cuh"

namespace jaxgemm {

// A thread moves 8 bytes at a time, with their flags a pair of words.
inline constexpr int kPacketBytes = 8, kPeerThreads = 64, kMostPeerCtas = 512;

// What the GPUs that meet share, as one of them sees it. Each has a slot for every packet of every GPU, twice: sums
// take turns, and a GPU that is one sum ahead of another, as it may be, leaves alone what the other one still reads. It
// cannot be two ahead: for that it would need the other one's packets of the sum between.
struct Peers {
  ptx::FlaggedPair* slots[kMostPeers];  // of each GPU: [turn][sender][packet]
  const ptx::FlaggedPair* own_slots;    // slots[rank]: an index that is not a constant would move the array to memory
  uint32_t* sums_of_cta;                // of this one: in how many sums each CTA has taken part
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
inline constexpr int kLooksAtAnotherCall = 1 << 20;  // half a second or so

template <class Element>
__device__ Element from_bits(uint32_t bits) {  // the low ones
  if constexpr (std::is_same_v<Element, float>) {
    return __uint_as_float(bits);
  } else if constexpr (std::is_same_v<Element, __half>) {
    return __ushort_as_half(static_cast<uint16_t>(bits));
  } else if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    return __ushort_as_bfloat16(static_cast<uint16_t>(bits));
  } else {
    return static_cast<Element>(bits);
  }
}

__device__ inline uint32_t to_bits(float x) { return __float_as_uint(x); }
__device__ inline uint32_t to_bits(__half x) { return __half_as_ushort(x); }
__device__ inline uint32_t to_bits(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
__device__ inline uint32_t to_bits(int32_t x) { return static_cast<uint32_t>(x); }

// Of words, as an array of elements that is indexed would lie in local memory.
template <class Element>
struct Packet {
  static constexpr int kElems = kPacketBytes / sizeof(Element), kOfWord = 4 / sizeof(Element);
  uint32_t words[2] = {};

  __device__ Element get(int i) const { return from_bits<Element>(words[i / kOfWord] >> (i % kOfWord * 16)); }
  __device__ void set(int i, Element element) {  // where there are zeros
    words[i / kOfWord] |= to_bits(element) << (i % kOfWord * 16);
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

__device__ inline float widened(float x) { return x; }
__device__ inline float widened(__half x) { return __half2float(x); }
__device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline uint32_t widened(int32_t x) { return static_cast<uint32_t>(x); }  // whose sums wrap around

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
// a CTA has seen arrive in one sum tells it that the last but one is over. There are kPeers GPUs at most. `sync` is the
// barrier of the CTA's threads.
template <class Element, int kPeers, class Sync>
__device__ void add_up(const Peers& peers, const Element* g_part, Element* g_sum, int64_t elements, bool whole,
                       uint32_t site, int cta, int thread, Sync&& sync) {
  constexpr int kElems = Packet<Element>::kElems;
  const int packets = static_cast<int>((elements + kElems - 1) / kElems);
  const uint32_t number = peers.sums_of_cta[cta] + 1;
  const Flags flags = {number, number ^ site};
  const int count = kPeers == 2 ? 2 : peers.count;  // two are all there can be
  const int turn = static_cast<int>(number % 2) * count;
  const auto slot = [&](int sender, int packet) { return (turn + sender) * peers.packets + packet; };
  const int first = cta * kPeerThreads + thread;
  const int lane = thread % kWarpSize, step = kMostPeerCtas * kPeerThreads;

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
  sync();  // all threads have read the number
  if (thread == 0) peers.sums_of_cta[cta] = number;
}

}  // namespace jaxgemm
