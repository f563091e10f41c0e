// What the FFI handlers share: how buffers and attributes become a GemmArgs, and how that is launched. The only header
// that includes XLA's.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "gemm.h"
#include "xla/ffi/api/ffi.h"

namespace jaxgemm {

namespace ffi = xla::ffi;

inline std::optional<DType> to_dtype(ffi::DataType type) {
  switch (type) {
#define JAXGEMM_FROM_XLA(id, ...) \
  case ffi::DataType::id: return DType::k##id;
    JAXGEMM_DTYPES(JAXGEMM_FROM_XLA)
#undef JAXGEMM_FROM_XLA
    default: return std::nullopt;
  }
}

// The value of an enum by its public name.
template <class Enum>
std::optional<Enum> by_name(std::string_view text, int count) {
  for (int i = 0; i < count; ++i) {
    if (name(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}
#define JAXGEMM_COUNT(...) +1
inline constexpr int kActivationCount = 0 JAXGEMM_ACTIVATIONS(JAXGEMM_COUNT);
inline constexpr int kPrecisionCount = 0 JAXGEMM_PRECISIONS(JAXGEMM_COUNT);
inline constexpr int kZerosCount = 0 JAXGEMM_ZEROS(JAXGEMM_COUNT);
#undef JAXGEMM_COUNT

inline ffi::Error invalid(const std::string& what) { return ffi::Error::InvalidArgument("jaxgemm: " + what); }

inline std::span<const int64_t> sizes(const ffi::AnyBuffer& buffer) {
  return {buffer.dimensions().begin(), buffer.dimensions().size()};
}

struct Call {
  const Kernel* kernel = nullptr;
  GemmArgs args;
};

// Among `rows`.
inline ffi::Error decode_kernel(std::string_view name, std::span<const Kernel* const> rows, Call& call) {
  const auto found = std::ranges::find(rows, name, [](const Kernel* kernel) { return kernel->info.full_name; });
  if (found != rows.end()) {
    call.kernel = *found;
    return ffi::Error::Success();
  }
  std::string known;  // put together here alone, as it takes longer than all else that a call does
  for (const Kernel* kernel : rows) known += (known.empty() ? "" : ", ") + std::string(kernel->info.full_name);
  return invalid("no kernel is called '" + std::string(name) + "'; this build has " + known);
}

// Alpha, if has_alpha says so, then bias if there is one more, are the operands behind the first `before`.
inline ffi::Error decode_counts(ffi::RemainingArgs operands, ffi::RemainingRets results, size_t before, bool has_alpha,
                                Call& call) {
  const size_t without_bias = before + (has_alpha ? 1 : 0);
  if (operands.size() < without_bias || operands.size() > without_bias + 1 || results.size() < 1 ||
      results.size() > 2) {
    return invalid("takes " + std::to_string(without_bias) + " or " + std::to_string(without_bias + 1) + " operands" +
                   (has_alpha ? " with alpha" : "") + " and 1 or 2 results, got " + std::to_string(operands.size()) +
                   " and " + std::to_string(results.size()));
  }
  call.args.problem.has_alpha = has_alpha;
  call.args.problem.has_bias = operands.size() > without_bias;
  call.args.problem.may_copy = results.size() > 1;
  return ffi::Error::Success();
}

// As it was when the workspace was made: the model is not asked again, which may be another one by now.
inline ffi::Error decode_split(ffi::Span<const int64_t> split, Call& call) {
  if (split.size() != 2 || split[1] < 1) return invalid("split is no number of whole tiles and of CTAs for each other");
  call.args.problem.split = {split[0], split[1]};
  return ffi::Error::Success();
}

// What is left when the problem is known: whether the kernel takes it, the epilogue's operands and the workspace.
inline ffi::Error decode_rest(ffi::RemainingArgs operands, ffi::RemainingRets results, size_t before, Call& call) {
  GemmArgs& args = call.args;
  const Problem& p = args.problem;
  const std::string name(call.kernel->info.full_name);
  if (std::string error = why_not(*call.kernel, p); !error.empty()) return invalid("kernel '" + name + "' " + error);
  if (p.has_alpha) {
    const auto alpha = operands.get<ffi::AnyBuffer>(before);
    if (!alpha || alpha->element_type() != ffi::DataType::F32 || alpha->element_count() != 1) {
      return invalid("alpha is not one float32 number");
    }
    args.alpha = static_cast<const float*>(alpha->untyped_data());
  }
  if (p.has_bias) {
    const auto bias = operands.get<ffi::AnyBuffer>(before + (p.has_alpha ? 1 : 0));
    if (!bias) return bias.error();
    const auto dtype = to_dtype(bias->element_type());
    const auto numbers = static_cast<int64_t>(bias->element_count());
    if (!dtype || !takes_bias(*dtype) || (numbers != p.N && numbers != p.batch * p.N)) {
      return invalid("bias is not a vector of N=" + std::to_string(p.N) +
                     " floating-point numbers of 16 or 32 bits, nor one for each of the batch of " +
                     std::to_string(p.batch));
    }
    args.bias = bias->untyped_data();
    args.bias_batch_stride = numbers == p.N ? 0 : p.N;
    args.bias_dtype = *dtype;
  }
  if (const int64_t needed = call.kernel->workspace_bytes(p); needed > 0) {
    auto workspace = results.get<ffi::AnyBuffer>(1);
    const int64_t given =
        workspace && (*workspace)->element_type() == ffi::DataType::U8 ? (*workspace)->element_count() : 0;
    // Result buffers carry no promise of alignment, so the caller gives kWorkspaceAlignment bytes more.
    if (given < needed + kWorkspaceAlignment) {
      return invalid("kernel '" + name + "' needs " + std::to_string(needed + kWorkspaceAlignment) +
                     " bytes of workspace, got " + std::to_string(given));
    }
    const auto address = reinterpret_cast<uintptr_t>((*workspace)->untyped_data());
    args.workspace =
        reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
  }
  return ffi::Error::Success();
}

// XLA is no place for exceptions to arrive in.
template <class F>
ffi::Error guarded(F&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("jaxgemm: ") + error.what());
  }
}

// Decodes for the GPU at hand, by decode(sm, call), and launches.
template <class Decode>
ffi::Error decode_and_launch(cudaStream_t stream, Decode&& decode) {
  return guarded([&] {
    int device = 0, major = 0, minor = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (status == cudaSuccess) status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (status != cudaSuccess) {
      (void)cudaGetLastError();  // reported here, and not to be found again by the next caller
      return ffi::Error::Internal("jaxgemm: the GPU cannot be asked for its architecture: " +
                                  std::string(cudaGetErrorString(status)));
    }
    Call call;
    ffi::Error error = decode(10 * major + minor, call);
    if (error.failure() || call.args.problem.empty()) return error;
    call.args.stream = stream;
    if (std::string what = call.kernel->launch(call.args); !what.empty()) {
      return ffi::Error::Internal("jaxgemm: kernel '" + std::string(call.kernel->info.full_name) + "' on " +
                                  describe(call.args.problem) + ": " + what);
    }
    return error;
  });
}

}  // namespace jaxgemm
