// The handler of products with quantised weights; what gemm_ffi.cc promises holds here too.
#include "call.h"
#include "gemm_ffi.h"

namespace jaxgemm {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text;
  for (int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

// Of one operand, all of whose sizes are known.
std::string why_not_shape(const char* what, const ffi::AnyBuffer& buffer, std::initializer_list<int64_t> wanted) {
  const std::span<const int64_t> have = sizes(buffer), want(wanted.begin(), wanted.size());
  if (std::equal(have.begin(), have.end(), want.begin(), want.end())) return {};
  return std::string(what) + " has shape " + shape_text(have) + ", not " + shape_text(want);
}

// Operands: lhs (batch, M, K), packed codes, scales (batch, groups, N), then zeros of the same shape unless `zeros`
// says "middle", alpha if has_alpha says so, then bias if there is one more. Results: out (batch, M, N) and, if the
// kernel wants one, workspace.
ffi::Error decode(int sm, ffi::RemainingArgs operands, ffi::RemainingRets results, Call& call,
                  std::string_view kernel_name, std::string_view activation_name, bool has_alpha,
                  ffi::Span<const int64_t> split, int64_t bits, int64_t group_size, std::string_view zeros_name) {
  if (ffi::Error error = decode_kernel(kernel_name, mixed_kernels(), call); error.failure()) return error;
  const auto zeros = by_name<Zeros>(zeros_name, kZerosCount);
  if (!zeros) return invalid("no zero points are called '" + std::string(zeros_name) + "'");
  const size_t matrices = *zeros == Zeros::kMiddle ? 3 : 4;
  if (ffi::Error error = decode_counts(operands, results, matrices, has_alpha, call); error.failure()) return error;
  const auto lhs = operands.get<ffi::AnyBuffer>(0), packed = operands.get<ffi::AnyBuffer>(1),
             scales = operands.get<ffi::AnyBuffer>(2);
  auto out = results.get<ffi::AnyBuffer>(0);
  if (!lhs || !packed || !scales || !out) return invalid("lhs, codes, scales or out is no buffer");
  const auto lhs_dtype = to_dtype(lhs->element_type()), scale_dtype = to_dtype(scales->element_type()),
             out_dtype = to_dtype((*out)->element_type());
  if (!lhs_dtype || !scale_dtype || !out_dtype) return invalid("the dtype of lhs, scales or out is not one of its own");
  if (packed->element_type() != ffi::DataType::U8) return invalid("codes are not packed into uint8");
  const auto activation = by_name<Activation>(activation_name, kActivationCount);
  if (!activation) return invalid("no activation is called '" + std::string(activation_name) + "'");
  constexpr size_t kDims = 3;
  if (sizes(*lhs).size() != kDims || sizes(**out).size() != kDims) return invalid("lhs or out has not 3 dimensions");
  if (bits != 4 && bits != 8) return invalid("codes have 4 or 8 bits, not " + std::to_string(bits));
  if (group_size < 1 || group_size > INT32_MAX) return invalid("group_size=" + std::to_string(group_size));

  GemmArgs& args = call.args;
  Problem& p = args.problem;
  p.batch = sizes(*lhs)[0];
  p.M = sizes(*lhs)[1];
  p.K = sizes(*lhs)[2];
  p.N = sizes(**out)[2];
  p.lhs = {p.M, p.K, p.K, p.M * p.K, false};
  p.rhs = {p.K, p.N, p.N, p.K * p.N, false};
  p.out = {p.M, p.N, p.N, p.M * p.N, false};
  p.lhs_dtype = p.rhs_dtype = *lhs_dtype;
  p.out_dtype = *out_dtype;
  p.activation = *activation;
  p.sm = sm;
  p.codes = {static_cast<int>(bits), group_size, *scale_dtype, *zeros};
  if (p.K > kMaxTmaSize || p.N > kMaxTmaSize) return invalid("K=" + std::to_string(p.K) + " N=" + std::to_string(p.N));
  const int64_t groups = (p.K + group_size - 1) / group_size;
  const int64_t tiles_n = (p.N + kPackedTileN - 1) / kPackedTileN, tiles_k = (p.K + kPackedTileK - 1) / kPackedTileK;
  std::string error = why_not_shape("out", **out, {p.batch, p.M, p.N});
  if (error.empty()) {
    error = why_not_shape("packed", *packed, {p.batch, tiles_n, tiles_k, kPackedTileK * kPackedTileN * bits / 8});
  }
  if (error.empty()) error = why_not_shape("scales", *scales, {p.batch, groups, p.N});
  args.lhs = lhs->untyped_data();
  args.rhs = packed->untyped_data();
  args.scales = scales->untyped_data();
  args.out = (*out)->untyped_data();
  if (*zeros != Zeros::kMiddle) {
    const auto buffer = operands.get<ffi::AnyBuffer>(3);
    if (!buffer || buffer->element_type() != (*zeros == Zeros::kInteger ? ffi::DataType::U8 : scales->element_type())) {
      return invalid("zero points are not of the dtype that '" + std::string(zeros_name) + "' says");
    }
    if (error.empty()) error = why_not_shape("zeros", *buffer, {p.batch, groups, p.N});
    args.zeros = buffer->untyped_data();
  }
  if (!error.empty()) return invalid(error);
  if (ffi::Error wrong = decode_split(split, call); wrong.failure()) return wrong;
  return decode_rest(operands, results, matrices, call);
}

template <class Binding>
auto with_attrs(Binding&& binding) {
  return std::move(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<std::string_view>("kernel")
      .template Attr<std::string_view>("activation")
      .template Attr<bool>("has_alpha")
      .template Attr<ffi::Span<const int64_t>>("split")
      .template Attr<int64_t>("bits")
      .template Attr<int64_t>("group_size")
      .template Attr<std::string_view>("zeros");
}

constexpr auto kMixed = [](cudaStream_t stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
                           const auto&... attrs) {
  return decode_and_launch(stream, [&](int sm, Call& call) { return decode(sm, operands, results, call, attrs...); });
};
constexpr auto kCheck = [](int64_t sm, ffi::RemainingArgs operands, ffi::RemainingRets results, const auto&... attrs) {
  return guarded([&] {
    Call call;
    return decode(static_cast<int>(sm), operands, results, call, attrs...);
  });
};

XLA_FFI_DEFINE_HANDLER(kMixedHandler, kMixed, with_attrs(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kMixedCheckHandler, kCheck, with_attrs(ffi::Ffi::Bind().Attr<int64_t>("sm")));

}  // namespace

void* mixed_handler() { return reinterpret_cast<void*>(+kMixedHandler); }
void* mixed_check_handler() { return reinterpret_cast<void*>(+kMixedCheckHandler); }

}  // namespace jaxgemm
