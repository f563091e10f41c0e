// The XLA FFI handlers, as opaque pointers: module.cc hands them to Python without seeing XLA's headers.
#pragma once

namespace jaxgemm {

// Enqueues one GEMM on XLA's CUDA stream. Attributes: gemm_ffi.cc.
void* gemm_handler();

// Takes the same operands, results and attributes on the host platform, judges them in the same way for the GPU that
// `sm` names, and launches nothing: lets machines without a GPU test what the handler refuses.
void* gemm_check_handler();

// The same of products with quantised weights: mixed_ffi.cc.
void* mixed_handler();
void* mixed_check_handler();

// Of sums over GPUs: peer_sum_ffi.cc. By the stage that XLA calls them in, one for the host platform that judges what
// the call would, and the type of what the first stage leaves to the last.
struct PeerSumHandlers {
  void *instantiate, *initialize, *execute, *check;
  void *type_id, *type_info;
};
PeerSumHandlers peer_sum_handlers();

struct HandlerMetadata {
  int api_major, api_minor;
  bool command_buffer_compatible;
};
HandlerMetadata gemm_handler_metadata();

}  // namespace jaxgemm
