// XLA calls in here: buffers and attributes become a GemmArgs, which is judged once more and launched.
//
// The handler allocates nothing, keeps no state, waits for nothing and runs the same kernels for the same attributes,
// so that XLA may capture it into a CUDA graph (Traits::kCmdBufferCompatible in xla/ffi/api/api.h).
#include "gemm_ffi.h"

#include <cuda_runtime_api.h>

#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "gemm.h"
#include "view.h"
#include "xla/ffi/api/ffi.h"

namespace jaxgemm {

// OperandDims as a dictionary attribute.
struct DimsAttr {
  xla::ffi::Span<const int64_t> order, batch, rows, cols;
};

}  // namespace jaxgemm

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jaxgemm::DimsAttr, xla::ffi::StructMember<xla::ffi::Span<const int64_t>>("order"),
                                      xla::ffi::StructMember<xla::ffi::Span<const int64_t>>("batch"),
                                      xla::ffi::StructMember<xla::ffi::Span<const int64_t>>("rows"),
                                      xla::ffi::StructMember<xla::ffi::Span<const int64_t>>("cols"));

namespace jaxgemm {
namespace {

namespace ffi = xla::ffi;

std::span<const int64_t> to_span(ffi::Span<const int64_t> span) { return {span.begin(), span.size()}; }

OperandDims to_dims(const DimsAttr& attr) {
  return {to_span(attr.order), to_span(attr.batch), to_span(attr.rows), to_span(attr.cols)};
}

std::span<const int64_t> sizes(const ffi::AnyBuffer& buffer) {
  return {buffer.dimensions().begin(), buffer.dimensions().size()};
}

std::optional<DType> to_dtype(ffi::DataType type) {
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
constexpr int kActivationCount = 0 JAXGEMM_ACTIVATIONS(JAXGEMM_COUNT);
constexpr int kPrecisionCount = 0 JAXGEMM_PRECISIONS(JAXGEMM_COUNT);
#undef JAXGEMM_COUNT

ffi::Error invalid(const std::string& what) { return ffi::Error::InvalidArgument("jaxgemm: " + what); }

struct Call {
  const Kernel* kernel = nullptr;
  GemmArgs args;
};

// Operands: lhs, rhs, then alpha if has_alpha says so, then bias if there is one more. Results: out and, if the kernel
// wants one, workspace.
ffi::Error decode(int sm, ffi::RemainingArgs operands, ffi::RemainingRets results, std::string_view kernel_name,
                  std::string_view precision, std::string_view activation, bool has_alpha,
                  ffi::Span<const int64_t> split, const DimsAttr& lhs_dims, const DimsAttr& rhs_dims,
                  const DimsAttr& out_dims, Call& call) {
  call.kernel = find(kernel_name);
  if (call.kernel == nullptr) {
    std::string known;
    for (const Kernel* kernel : kernels()) known += (known.empty() ? "" : ", ") + std::string(kernel->info.full_name);
    return invalid("no kernel is called '" + std::string(kernel_name) + "'; this build has " + known);
  }
  const size_t without_bias = has_alpha ? 3 : 2;
  if (operands.size() < without_bias || operands.size() > without_bias + 1 || results.size() < 1 ||
      results.size() > 2) {
    return invalid("takes " + std::to_string(without_bias) + " or " + std::to_string(without_bias + 1) + " operands" +
                   (has_alpha ? " with alpha" : "") + " and 1 or 2 results, got " + std::to_string(operands.size()) +
                   " and " + std::to_string(results.size()));
  }
  const auto lhs = operands.get<ffi::AnyBuffer>(0), rhs = operands.get<ffi::AnyBuffer>(1);
  auto out = results.get<ffi::AnyBuffer>(0);
  if (!lhs || !rhs || !out) return invalid("lhs, rhs or out is no buffer");

  GemmArgs& args = call.args;
  Problem& p = args.problem;
  const auto lhs_dtype = to_dtype(lhs->element_type()), rhs_dtype = to_dtype(rhs->element_type()),
             out_dtype = to_dtype((*out)->element_type());
  if (!lhs_dtype || !rhs_dtype || !out_dtype) return invalid("the dtype of lhs, rhs or out is not one of its own");
  const auto precision_value = by_name<Precision>(precision, kPrecisionCount);
  if (!precision_value) return invalid("no precision is called '" + std::string(precision) + "'");
  const auto activation_value = by_name<Activation>(activation, kActivationCount);
  if (!activation_value) return invalid("no activation is called '" + std::string(activation) + "'");
  p.lhs_dtype = *lhs_dtype;
  p.rhs_dtype = *rhs_dtype;
  p.out_dtype = *out_dtype;
  p.precision = *precision_value;
  p.activation = *activation_value;
  p.has_alpha = has_alpha;
  p.has_bias = operands.size() > without_bias;
  p.sm = sm;
  // As it was when the workspace was made: the model is not asked again, which may be another one by now.
  if (split.size() != 2 || split[1] < 1) return invalid("split is no number of whole tiles and of CTAs for each other");
  p.split = {split[0], split[1]};
  if (std::string error = make_problem(sizes(*lhs), to_dims(lhs_dims), sizes(*rhs), to_dims(rhs_dims), sizes(**out),
                                       to_dims(out_dims), p);
      !error.empty()) {
    return invalid(error);
  }
  if (std::string error = why_not(*call.kernel, p); !error.empty()) {
    return invalid("kernel '" + std::string(kernel_name) + "' " + error);
  }

  args.lhs = lhs->untyped_data();
  args.rhs = rhs->untyped_data();
  args.out = (*out)->untyped_data();
  if (p.has_alpha) {
    const auto alpha = operands.get<ffi::AnyBuffer>(2);
    if (!alpha || alpha->element_type() != ffi::DataType::F32 || alpha->element_count() != 1) {
      return invalid("alpha is not one float32 number");
    }
    args.alpha = static_cast<const float*>(alpha->untyped_data());
  }
  if (p.has_bias) {
    const auto bias = operands.get<ffi::AnyBuffer>(without_bias);
    const auto dtype = bias ? to_dtype(bias->element_type()) : std::nullopt;
    if (!dtype || !takes_bias(*dtype) || static_cast<int64_t>(bias->element_count()) != p.N) {
      return invalid("bias is not a vector of N=" + std::to_string(p.N) + " floating-point numbers of 16 or 32 bits");
    }
    args.bias = bias->untyped_data();
    args.bias_dtype = *dtype;
  }
  if (const int64_t needed = call.kernel->workspace_bytes(p); needed > 0) {
    auto workspace = results.get<ffi::AnyBuffer>(1);
    const int64_t given =
        workspace && (*workspace)->element_type() == ffi::DataType::U8 ? (*workspace)->element_count() : 0;
    // Result buffers carry no promise of alignment, so the caller gives kWorkspaceAlignment bytes more.
    if (given < needed + kWorkspaceAlignment) {
      return invalid("kernel '" + std::string(kernel_name) + "' needs " + std::to_string(needed + kWorkspaceAlignment) +
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

ffi::Error gemm(cudaStream_t stream, ffi::RemainingArgs operands, ffi::RemainingRets results, std::string_view kernel,
                std::string_view precision, std::string_view activation, bool has_alpha, ffi::Span<const int64_t> split,
                DimsAttr lhs, DimsAttr rhs, DimsAttr out) {
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
    ffi::Error error = decode(10 * major + minor, operands, results, kernel, precision, activation, has_alpha, split,
                              lhs, rhs, out, call);
    if (error.failure() || call.args.problem.empty()) return error;
    call.args.stream = stream;
    if (std::string what = call.kernel->launch(call.args); !what.empty()) {
      return ffi::Error::Internal("jaxgemm: kernel '" + std::string(kernel) + "' on " + describe(call.args.problem) +
                                  ": " + what);
    }
    return error;
  });
}

ffi::Error gemm_check(int64_t sm, ffi::RemainingArgs operands, ffi::RemainingRets results, std::string_view kernel,
                      std::string_view precision, std::string_view activation, bool has_alpha,
                      ffi::Span<const int64_t> split, DimsAttr lhs, DimsAttr rhs, DimsAttr out) {
  return guarded([&] {
    Call call;
    return decode(static_cast<int>(sm), operands, results, kernel, precision, activation, has_alpha, split, lhs, rhs,
                  out, call);
  });
}

XLA_FFI_DEFINE_HANDLER(kGemmHandler, gemm,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("kernel")
                           .Attr<std::string_view>("precision")
                           .Attr<std::string_view>("activation")
                           .Attr<bool>("has_alpha")
                           .Attr<ffi::Span<const int64_t>>("split")
                           .Attr<DimsAttr>("lhs")
                           .Attr<DimsAttr>("rhs")
                           .Attr<DimsAttr>("out"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(kGemmCheckHandler, gemm_check,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("sm")
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("kernel")
                           .Attr<std::string_view>("precision")
                           .Attr<std::string_view>("activation")
                           .Attr<bool>("has_alpha")
                           .Attr<ffi::Span<const int64_t>>("split")
                           .Attr<DimsAttr>("lhs")
                           .Attr<DimsAttr>("rhs")
                           .Attr<DimsAttr>("out"));

}  // namespace

void* gemm_handler() { return reinterpret_cast<void*>(+kGemmHandler); }
void* gemm_check_handler() { return reinterpret_cast<void*>(+kGemmCheckHandler); }

HandlerMetadata gemm_handler_metadata() {
  // A call with the metadata extension is answered before any argument is read (xla/ffi/api/c_api.h).
  XLA_FFI_Metadata metadata = {};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension = {};
  extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  (void)kGemmHandler(&frame);
  return {metadata.api_version.major_version, metadata.api_version.minor_version,
          (metadata.traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE) != 0};
}

}  // namespace jaxgemm
