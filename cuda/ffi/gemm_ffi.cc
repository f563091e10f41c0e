// XLA calls in here: buffers and attributes become a GemmArgs, which is judged once more and launched.
//
// The handler allocates nothing, keeps no state, waits for nothing and runs the same kernels for the same attributes,
// so that XLA may capture it into a CUDA graph (Traits::kCmdBufferCompatible in xla/ffi/api/api.h).
#include "gemm_ffi.h"

#include "call.h"
#include "view.h"

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

std::span<const int64_t> to_span(ffi::Span<const int64_t> span) { return {span.begin(), span.size()}; }

OperandDims to_dims(const DimsAttr& attr) {
  return {to_span(attr.order), to_span(attr.batch), to_span(attr.rows), to_span(attr.cols)};
}

// Operands: lhs, rhs, then alpha if has_alpha says so, then bias if there is one more. Results: out and, if the kernel
// wants one, workspace.
ffi::Error decode(int sm, ffi::RemainingArgs operands, ffi::RemainingRets results, Call& call,
                  std::string_view kernel_name, std::string_view precision_name, std::string_view activation_name,
                  bool has_alpha, ffi::Span<const int64_t> split, const DimsAttr& lhs_dims, const DimsAttr& rhs_dims,
                  const DimsAttr& out_dims) {
  constexpr size_t kMatrices = 2;
  if (ffi::Error error = decode_kernel(kernel_name, kernels(), call); error.failure()) return error;
  if (ffi::Error error = decode_counts(operands, results, kMatrices, has_alpha, call); error.failure()) {
    return error;
  }
  const auto lhs = operands.get<ffi::AnyBuffer>(0), rhs = operands.get<ffi::AnyBuffer>(1);
  auto out = results.get<ffi::AnyBuffer>(0);
  if (!lhs || !rhs || !out) return invalid("lhs, rhs or out is no buffer");

  GemmArgs& args = call.args;
  Problem& p = args.problem;
  const auto lhs_dtype = to_dtype(lhs->element_type()), rhs_dtype = to_dtype(rhs->element_type()),
             out_dtype = to_dtype((*out)->element_type());
  if (!lhs_dtype || !rhs_dtype || !out_dtype) return invalid("the dtype of lhs, rhs or out is not one of its own");
  const auto precision = by_name<Precision>(precision_name, kPrecisionCount);
  if (!precision) return invalid("no precision is called '" + std::string(precision_name) + "'");
  const auto activation = by_name<Activation>(activation_name, kActivationCount);
  if (!activation) return invalid("no activation is called '" + std::string(activation_name) + "'");
  p.lhs_dtype = *lhs_dtype;
  p.rhs_dtype = *rhs_dtype;
  p.out_dtype = *out_dtype;
  p.precision = *precision;
  p.activation = *activation;
  p.sm = sm;
  if (ffi::Error error = decode_split(split, call); error.failure()) return error;
  if (std::string error = make_problem(sizes(*lhs), to_dims(lhs_dims), sizes(*rhs), to_dims(rhs_dims), sizes(**out),
                                       to_dims(out_dims), p);
      !error.empty()) {
    return invalid(error);
  }
  args.lhs = lhs->untyped_data();
  args.rhs = rhs->untyped_data();
  args.out = (*out)->untyped_data();
  return decode_rest(operands, results, kMatrices, call);
}

template <class Binding>
auto with_attrs(Binding&& binding) {
  return std::move(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<std::string_view>("kernel")
      .template Attr<std::string_view>("precision")
      .template Attr<std::string_view>("activation")
      .template Attr<bool>("has_alpha")
      .template Attr<ffi::Span<const int64_t>>("split")
      .template Attr<DimsAttr>("lhs")
      .template Attr<DimsAttr>("rhs")
      .template Attr<DimsAttr>("out");
}

constexpr auto kGemm = [](cudaStream_t stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
                          const auto&... attrs) {
  return decode_and_launch(stream, [&](int sm, Call& call) { return decode(sm, operands, results, call, attrs...); });
};
constexpr auto kCheck = [](int64_t sm, ffi::RemainingArgs operands, ffi::RemainingRets results, const auto&... attrs) {
  return guarded([&] {
    Call call;
    return decode(static_cast<int>(sm), operands, results, call, attrs...);
  });
};

XLA_FFI_DEFINE_HANDLER(kGemmHandler, kGemm, with_attrs(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kGemmCheckHandler, kCheck, with_attrs(ffi::Ffi::Bind().Attr<int64_t>("sm")));

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
