// What the emulator's library does, on the GPU: the same C functions (tests/emulator/core/request.h) around the same
// sources, compiled by nvcc. test_emulator.py compares the two.
#include <cuda_runtime.h>

#include <cstring>
#include <stdexcept>

#include "core/request.h"
#include "reference/reference.h"

// Kernels with a defect stay off the GPU, which many of them would hang.
namespace jaxgemm {
#define JAXGEMM_NONE(family)                                    \
  extern const std::span<const Kernel* const> family##_kernels; \
  const std::span<const Kernel* const> family##_kernels{};
JAXGEMM_NONE(simt_defects)
JAXGEMM_NONE(sm80_defects)
JAXGEMM_NONE(sm90_defects)
#undef JAXGEMM_NONE
}  // namespace jaxgemm

namespace {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

// Device memory full of NaN, `misalignment` bytes past what cudaMalloc aligns to.
class Buffer {
 public:
  explicit Buffer(size_t bytes, size_t misalignment = 0) : bytes_(bytes), misalignment_(misalignment) {
    check(cudaMalloc(&base_, bytes + misalignment + 1), "cudaMalloc");
    check(cudaMemset(base_, 0xFF, bytes + misalignment + 1), "cudaMemset");
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(base_); }

  char* data() const { return static_cast<char*>(base_) + misalignment_; }
  void copy_in(const void* from) { check(cudaMemcpy(data(), from, bytes_, cudaMemcpyHostToDevice), "copying in"); }
  void copy_out(void* to) const { check(cudaMemcpy(to, data(), bytes_, cudaMemcpyDeviceToHost), "copying out"); }

 private:
  size_t bytes_, misalignment_;
  void* base_ = nullptr;
};

Buffer buffer_of(const EmuOperand& operand) {
  return Buffer(static_cast<size_t>(operand.bytes), static_cast<size_t>(operand.misalignment));
}

// Of what was launched; "" if nothing went wrong.
std::string finished(std::string error) {
  const cudaError_t status = cudaDeviceSynchronize();
  return error.empty() && status != cudaSuccess ? cudaGetErrorString(status) : error;
}

std::string answer_json(const std::string& error) {
  return "{\"error\": " + emu::quoted(error) +
         ", \"damaged_guards\": \"\", \"findings\": [], \"wavefronts\": [], \"switches\": 0, \"launches\": 0}";
}

std::string run(const EmuRequest& request) {
  const jaxgemm::Kernel& kernel = emu::kernel_named(request.kernel);
  const jaxgemm::Problem problem = emu::to_problem(request);
  if (std::string error = why_not(kernel, problem); !error.empty()) return "{\"refused\": " + emu::quoted(error) + "}";
  Buffer lhs = buffer_of(request.lhs), rhs = buffer_of(request.rhs), out = buffer_of(request.out);
  lhs.copy_in(request.lhs.data);
  rhs.copy_in(request.rhs.data);
  const jaxgemm::DType bias_dtype = emu::bias_dtype(request);
  Buffer alpha(sizeof(float)), bias(static_cast<size_t>(problem.N * jaxgemm::size_bytes(bias_dtype)));
  if (request.alpha) alpha.copy_in(request.alpha);
  if (request.bias) bias.copy_in(request.bias);
  const Buffer workspace(problem.empty() ? 0 : static_cast<size_t>(kernel.workspace_bytes(problem)));
  const jaxgemm::GemmArgs args = {.problem = problem,
                                  .lhs = lhs.data(),
                                  .rhs = rhs.data(),
                                  .alpha = request.alpha ? reinterpret_cast<const float*>(alpha.data()) : nullptr,
                                  .bias = request.bias ? bias.data() : nullptr,
                                  .bias_dtype = bias_dtype,
                                  .out = out.data(),
                                  .workspace = workspace.data()};
  const std::string error = finished(problem.empty() ? "" : kernel.launch(args));
  if (error.empty()) out.copy_out(request.out.data);
  return answer_json(error);
}

std::string run_probe(const char* name, const uint32_t* in, uint32_t* out) {
  const jaxgemm::probes::Probe& probe = emu::probe_named(name);
  Buffer input(static_cast<size_t>(probe.in_words) * sizeof(uint32_t));
  Buffer output(static_cast<size_t>(probe.out_words) * sizeof(uint32_t));
  input.copy_in(in);
  const std::string error = finished(probe.launch(reinterpret_cast<const uint32_t*>(input.data()),
                                                  reinterpret_cast<uint32_t*>(output.data()), nullptr));
  if (error.empty()) output.copy_out(out);
  return answer_json(error);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* emu_run(const EmuRequest* request) {
  return emu::guarded([&] { return run(*request); });
}

__attribute__((visibility("default"))) const char* emu_run_probe(const char* name, const uint32_t* in, uint32_t* out,
                                                                 const EmuSchedule*) {
  return emu::guarded([&] { return run_probe(name, in, out); });
}

}  // extern "C"
