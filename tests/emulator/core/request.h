// What Python asks for (library.py), as the emulator and the program that runs the same on a GPU
// (tests/gpu/emulator_twin.cu) read it: the registry, one kernel on one problem, one probe. Answers are JSON.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "gemm.h"
#include "probes/probe.h"

extern "C" {

struct EmuOperand {
  void* data;
  int64_t bytes, rows, cols, ld, batch_stride;
  int32_t transposed;
  int32_t misalignment;  // bytes past a 256-byte boundary
};

struct EmuSchedule {
  uint64_t seed;
  int32_t workers, conflicts;
  int32_t latency[4];  // emu::Latency by emu::Engine
  int32_t multiprocessors;
};

struct EmuRequest {
  const char* kernel;
  int64_t batch, M, N, K;
  EmuOperand lhs, rhs, out;
  const char *lhs_dtype, *rhs_dtype, *out_dtype, *precision, *activation;
  const float* alpha;  // one element, or null
  const void* bias;    // N elements of bias_dtype, for each of the batch if bias_batch_stride is N; or null
  const char* bias_dtype;
  int64_t bias_batch_stride;
  int64_t whole, splits;       // see KSplit; splits == 0: as the model says
  int64_t bits, group_size;    // of quantised rhs, whose operand is then its codes; bits == 0: rhs is dense
  const void *scales, *zeros;  // of all groups, like bias; zeros may be null
  int64_t parameters;          // how many of either
  const char *scale_dtype, *zeros_kind;
  EmuSchedule schedule;
  int64_t* owners;  // per element of out: CTA * threads + thread that wrote it, -1 if none; or null
};

}  // extern "C"

namespace emu {

std::string quoted(std::string_view text);

template <class Range, class Write>
std::string list(const Range& range, Write&& write) {
  std::string json = "[";
  for (const auto& element : range) json += (json.size() > 1 ? ", " : "") + write(element);
  return json + "]";
}

// As what a C function returns. The caller's copy lives until its OS thread's next call.
const char* answer(std::string json);

// Python is no place for exceptions to arrive in.
template <class F>
const char* guarded(F&& body) {
  try {
    return answer(body());
  } catch (const std::exception& error) {
    return answer("{\"exception\": " + quoted(error.what()) + "}");
  }
}

// The registry's kernels, dense and mixed, then the reference kernels.
std::vector<const jaxgemm::Kernel*> all_kernels();
const jaxgemm::Kernel& kernel_named(const char* name);
std::vector<jaxgemm::probes::Probe> all_probes();
const jaxgemm::probes::Probe& probe_named(const char* name);

// What why_not() would say of the ladder's first kernel if it needed this much shared memory.
std::string why_not_with(int smem_bytes, int sm);

jaxgemm::Problem to_problem(const EmuRequest& request);
jaxgemm::DType bias_dtype(const EmuRequest& request);

}  // namespace emu
