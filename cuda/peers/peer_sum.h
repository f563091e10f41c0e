// Sums over the GPUs of one process, each of which has a part of the same shape and gets the whole: what a product
// whose K is split ends in. Made for the few tokens of decoding, where XLA's all-reduce takes longer than the product:
// it leaves the CUDA graph that the rest of the program is in.
//
// Every GPU writes its part into the memory of all others and adds up what arrives in its own: one kernel, which waits
// for that of the others as any all-reduce does. It is a kernel like others to XLA, and so part of a graph.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "gemm.h"

namespace jaxgemm {

inline constexpr int kMostPeers = 8;

// Of a part: what a GPU sends grows with how many others there are. So much takes two H200 less than half as long as
// XLA's all-reduce; from about four times as much on that is faster (docs/tried.md).
inline constexpr int64_t most_peer_bytes(int64_t peers) { return (int64_t{1} << 20) / (peers > 1 ? peers - 1 : 1); }

inline constexpr bool adds_up_over_peers(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kS32;
}

// Whether these GPUs, by CUDA's numbers in this process, reach the memory of each other.
bool peers_reach(std::span<const int64_t> devices);

// "", or why these GPUs do not add up parts of so many elements of this dtype.
std::string why_no_peer_sum(std::span<const int64_t> devices, DType dtype, int64_t elements);

// Gives these GPUs the memory that they meet in, once and for good. While a stream records a graph, nothing may be
// allocated: so it is to be asked for before. Returns "" or what went wrong.
std::string prepare_peers(std::span<const int64_t> devices);

struct PeerSum {
  std::span<const int64_t> devices;  // in the order in which their parts are added up, the same for all of them
  int64_t device = 0;                // the one that it is enqueued on
  uint32_t site = 0;                 // of the call in the program: the same for all devices, and for no other call
  DType dtype = DType::kF32;
  int64_t elements = 0;
  const void* part = nullptr;
  void* sum = nullptr;  // may be `part`
  void* stream = nullptr;
};

// Enqueues it. The sums of devices that meet have to come in the same order on all of them, as those of one program do.
// If they do not, the kernel waits, and it stops with an error if the others add up something else: it never takes the
// parts of another sum for its own. Returns "" or what went wrong.
std::string peer_sum(const PeerSum& sum);

}  // namespace jaxgemm
