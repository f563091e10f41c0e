// What probes of one warp are made of. A probe is a struct P with
//   kInWords, kOutWords             int
//   Shared                          the struct that lives in shared memory, NoStorage if there is none
//   run(Shared&, in, out)           what the warp does
#pragma once

#include <cstring>

#include "launch.cuh"
#include "probes/probe.h"
#include "ptx/shared_storage.cuh"

namespace jaxgemm::probes {

inline constexpr int kLanes = 32;

__device__ inline int lane() { return static_cast<int>(threadIdx.x); }

__device__ inline uint32_t float_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

__device__ inline float bits_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

struct NoStorage {};

template <class P>
__global__ void __launch_bounds__(kLanes) probe_kernel(const uint32_t* in, uint32_t* out) {
  P::run(shared_storage<typename P::Shared>(), in, out);
}

template <class P>
std::string launch(const uint32_t* in, uint32_t* out, void* stream) {
  return launch_kernel(probe_kernel<P>, 1, kLanes, sizeof(typename P::Shared), stream, in, out);
}

template <class P>
constexpr Probe probe(std::string_view name) {
  return {name, P::kInWords, P::kOutWords, &launch<P>};
}

}  // namespace jaxgemm::probes
