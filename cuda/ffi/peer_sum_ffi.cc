// The handler of sums over GPUs (peers/peer_sum.h). XLA makes one Site for each call in a program, which all devices
// share, has every device prepare before a program begins, and may capture what the call itself does into a CUDA graph.
#include <atomic>
#include <memory>

#include "call.h"
#include "gemm_ffi.h"
#include "peers/peer_sum.h"

namespace jaxgemm {
namespace {

using Devices = ffi::Span<const int64_t>;

std::span<const int64_t> to_span(Devices devices) { return {devices.begin(), devices.size()}; }

// A call in a program.
struct Site {
  static ffi::TypeId id;
  uint32_t number;
};
ffi::TypeId Site::id = {};
constexpr ffi::TypeInfo kSiteInfo = ffi::MakeTypeInfo<Site>();

ffi::Error decode(Devices devices, int64_t device, ffi::AnyBuffer part, ffi::Result<ffi::AnyBuffer> sum,
                  PeerSum& call) {
  const auto dtype = to_dtype(part.element_type());
  if (!dtype) return invalid("the dtype of parts is not one of its own");
  if (sum->element_type() != part.element_type() || sum->element_count() != part.element_count()) {
    return invalid("a sum has the dtype and the size of its parts");
  }
  call.devices = to_span(devices);
  call.device = device;
  call.dtype = *dtype;
  call.elements = static_cast<int64_t>(part.element_count());
  call.part = part.untyped_data();
  call.sum = sum->untyped_data();
  if (std::string error = why_no_peer_sum(call.devices, call.dtype, call.elements); !error.empty()) {
    return invalid(error);
  }
  if (std::ranges::find(call.devices, device) == call.devices.end()) {
    return invalid("this sum is compiled for other GPUs than number " + std::to_string(device));
  }
  return ffi::Error::Success();
}

constexpr auto kInstantiate = [](Devices) -> ffi::ErrorOr<std::unique_ptr<Site>> {
  static std::atomic<uint32_t> sites = 0;
  // An odd factor: no two calls have the same one until there were 2^32, and neighbours differ in many bits.
  return std::make_unique<Site>(Site{++sites * 0x9E3779B1u});
};

constexpr auto kPrepare = [](Devices devices, ffi::RemainingArgs, ffi::RemainingRets) {
  return guarded([&] {
    std::string error = prepare_peers(to_span(devices));
    return error.empty() ? ffi::Error::Success()
                         : ffi::Error::Internal("jaxgemm: GPUs cannot add up each other's parts: " + error);
  });
};

constexpr auto kSum = [](cudaStream_t stream, int32_t device, Site* site, ffi::AnyBuffer part,
                         ffi::Result<ffi::AnyBuffer> sum, Devices devices) {
  return guarded([&] {
    PeerSum call;
    if (ffi::Error error = decode(devices, device, part, sum, call); error.failure()) return error;
    call.site = site->number;
    call.stream = stream;
    std::string error = peer_sum(call);
    return error.empty() ? ffi::Error::Success() : ffi::Error::Internal("jaxgemm: a sum over GPUs: " + error);
  });
};

constexpr auto kCheck = [](int64_t device, ffi::AnyBuffer part, ffi::Result<ffi::AnyBuffer> sum, Devices devices) {
  return guarded([&] {
    PeerSum call;
    return decode(devices, device, part, sum, call);
  });
};

XLA_FFI_DEFINE_HANDLER(kInstantiateHandler, kInstantiate, ffi::Ffi::BindInstantiate().Attr<Devices>("devices"));
XLA_FFI_DEFINE_HANDLER(
    kPrepareHandler, kPrepare,
    ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Attr<Devices>("devices").RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kSumHandler, kSum,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::State<Site>>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<Devices>("devices"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(
    kCheckHandler, kCheck,
    ffi::Ffi::Bind().Attr<int64_t>("device").Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<Devices>("devices"));

}  // namespace

PeerSumHandlers peer_sum_handlers() {
  return {.instantiate = reinterpret_cast<void*>(+kInstantiateHandler),
          .initialize = reinterpret_cast<void*>(+kPrepareHandler),
          .execute = reinterpret_cast<void*>(+kSumHandler),
          .check = reinterpret_cast<void*>(+kCheckHandler),
          .type_id = &Site::id,
          .type_info = const_cast<ffi::TypeInfo*>(&kSiteInfo)};
}

}  // namespace jaxgemm
