// What every family shares: KernelInfo derived from a Config, the launch itself, and the dispatch from run-time
// layouts and dtypes to template arguments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>

#include "gemm.h"

namespace jaxgemm {

// A text that the compiler puts together.
struct FixedText {
  std::array<char, 64> chars = {};
  size_t size = 0;

  constexpr void append(std::string_view text) {
    for (char c : text) chars[size++] = c;
  }
  constexpr void append(int number) {
    if (number >= 10) append(number / 10);
    chars[size++] = static_cast<char>('0' + number % 10);
  }
  constexpr std::string_view view() const { return {chars.data(), size}; }
};

// "family:MxNxK", after the CTA tile, and what tells apart kernels of the same one.
template <class Config>
inline constexpr FixedText kFullName = [] {
  constexpr Tile tile = Config::kCtaTile;
  FixedText text;
  text.append(Config::kFamily);
  text.append(":");
  text.append(tile.m);
  text.append("x");
  text.append(tile.n);
  text.append("x");
  text.append(tile.k);
  if constexpr (requires { Config::kSuffix; }) text.append(Config::kSuffix);
  return text;
}();

// A Config is a struct with
//   kFamily                     std::string_view
//   kDTypes                     an array of DTypes
//   kCtaTile, kWarpTile         Tile
//   kStages, kThreads           int
//   SharedStorage               the struct that lives in dynamic shared memory
// and optionally kSuffix (of the name), kMinSm, kMaxSm, and kTf32, kHighest, kSplitK, kStreamK, kClusterCtas, kTma,
// kBits, kGroupMultiple, kCtas, kShiftedAhead, kSharers and kTilesAtOnce (see KernelInfo).
template <class Config>
constexpr KernelInfo describe() {
  constexpr int min_sm = [] {
    if constexpr (requires { Config::kMinSm; }) return Config::kMinSm;
    return 80;
  }();
  constexpr int max_sm = [] {
    if constexpr (requires { Config::kMaxSm; }) return Config::kMaxSm;
    return 0;
  }();
  constexpr bool tf32 = [] {
    if constexpr (requires { Config::kTf32; }) return Config::kTf32;
    return false;
  }();
  constexpr bool highest = [] {
    if constexpr (requires { Config::kHighest; }) return Config::kHighest;
    return true;
  }();
  constexpr bool split_k = [] {
    if constexpr (requires { Config::kSplitK; }) return Config::kSplitK;
    return false;
  }();
  constexpr bool stream_k = [] {
    if constexpr (requires { Config::kStreamK; }) return Config::kStreamK;
    return false;
  }();
  constexpr int cluster_ctas = [] {
    if constexpr (requires { Config::kClusterCtas; }) return Config::kClusterCtas;
    return 1;
  }();
  constexpr bool tma = [] {
    if constexpr (requires { Config::kTma; }) return Config::kTma;
    return false;
  }();
  constexpr int bits = [] {
    if constexpr (requires { Config::kBits; }) return Config::kBits;
    return 0;
  }();
  constexpr int group_multiple = [] {
    if constexpr (requires { Config::kGroupMultiple; }) return Config::kGroupMultiple;
    return 1;
  }();
  constexpr int resident_ctas = [] {
    if constexpr (requires { Config::kCtas; }) return Config::kCtas;
    return 1;
  }();
  constexpr int shifted_ahead = [] {
    if constexpr (requires { Config::kShiftedAhead; }) return Config::kShiftedAhead;
    return 0;
  }();
  constexpr int k_sharers = [] {
    if constexpr (requires { Config::kSharers; }) return Config::kSharers;
    return 1;
  }();
  constexpr int tiles_at_once = [] {
    if constexpr (requires { Config::kTilesAtOnce; }) return Config::kTilesAtOnce;
    return 1;
  }();
  constexpr int smem_bytes =
      std::is_empty_v<typename Config::SharedStorage> ? 0 : sizeof(typename Config::SharedStorage);
  static_assert(Config::kThreads % 32 == 0 && Config::kThreads <= 1024);
  static_assert(smem_bytes <= kMaxSmemBytes, "more shared memory than any GPU gives one CTA");
  constexpr int multiprocessor_bytes = 228 * 1024, reserved_bytes = 1024;  // of a GPU that has the most; for each CTA
  static_assert(resident_ctas * (smem_bytes + reserved_bytes) <= multiprocessor_bytes, "kCtas do not fit");
  return {.family = Config::kFamily,
          .config = kFullName<Config>.view().substr(Config::kFamily.size() + 1),
          .full_name = kFullName<Config>.view(),
          .min_sm = min_sm,
          .max_sm = max_sm,
          .dtypes = Config::kDTypes,
          .layouts = {true, bits == 0, bits == 0, bits == 0},
          .cta_tile = Config::kCtaTile,
          .warp_tile = Config::kWarpTile,
          .stages = Config::kStages,
          .threads = Config::kThreads,
          .smem_bytes = smem_bytes,
          .tf32 = tf32,
          .highest = highest,
          .split_k = split_k,
          .stream_k = stream_k,
          .cluster_ctas = cluster_ctas,
          .tma = tma,
          .fused_epilogue = true,
          .bits = bits,
          .group_multiple = group_multiple,
          .resident_ctas = resident_ctas,
          .shifted_ahead = shifted_ahead,
          .k_sharers = k_sharers,
          .tiles_at_once = tiles_at_once};
}

inline int64_t no_workspace(const Problem&) { return 0; }

// Lets the kernel have that much dynamic shared memory. Returns "" or CUDA's own words for what failed.
template <class... Params>
std::string allow_shared_memory(void (*kernel)(Params...), int smem_bytes) {
  constexpr int kDefaultSmemBytes = 48 * 1024;  // more must be asked for, CUDA C++ programming guide, "Shared memory"
  if (smem_bytes <= kDefaultSmemBytes) return {};
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();  // the error is reported here: it must not be found again by the next caller
  return std::string("cudaFuncSetAttribute: ") + cudaGetErrorString(status);
}

// What CUDA is told of a launch of so many CTAs, in clusters of cluster_ctas.
struct LaunchConfig {
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute cluster = {};

  LaunchConfig(int64_t ctas, int cluster_ctas, int threads, int smem_bytes) {
    config.gridDim = dim3(static_cast<unsigned>(ctas));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(smem_bytes);
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(cluster_ctas), 1, 1};
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  LaunchConfig(const LaunchConfig&) = delete;  // which points into itself
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

// Enqueues kernel<<<ctas, threads, smem_bytes, stream>>>(args...) in clusters of cluster_ctas and returns "" or CUDA's
// own words for what failed.
template <class... Params, class... Args>
std::string launch_clusters(int cluster_ctas, void (*kernel)(Params...), int64_t ctas, int threads, int smem_bytes,
                            void* stream, const Args&... args) {
  if (std::string error = allow_shared_memory(kernel, smem_bytes); !error.empty()) return error;
  LaunchConfig launch(ctas, cluster_ctas, threads, smem_bytes);
  launch.config.stream = static_cast<cudaStream_t>(stream);
  if (cluster_ctas == 1) launch.config.numAttrs = 0;
  if (cudaError_t status = cudaLaunchKernelEx(&launch.config, kernel, static_cast<Params>(args)...);
      status != cudaSuccess) {
    (void)cudaGetLastError();
    return std::string("cudaLaunchKernelEx: ") + cudaGetErrorString(status);
  }
  return {};
}

// The same without clusters.
template <class... Params, class... Args>
std::string launch_kernel(void (*kernel)(Params...), int64_t ctas, int threads, int smem_bytes, void* stream,
                          const Args&... args) {
  return launch_clusters(1, kernel, ctas, threads, smem_bytes, stream, args...);
}

// How many clusters of the kernel run at the same time on the current device, of a launch of so many CTAs, or of any:
// CUDA is asked once for each kernel, device and size of a cluster, as that takes longer than a launch. Returns "" or
// CUDA's own words for what failed.
template <class... Params>
std::string resident_clusters(int64_t& count, int cluster_ctas, void (*kernel)(Params...), int threads, int smem_bytes,
                              int64_t ctas = 0) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, int>, int> known;
  int device = 0, value = 0;
  cudaError_t status = cudaGetDevice(&device);
  const std::tuple key = {reinterpret_cast<const void*>(kernel), device, cluster_ctas};
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(key); status == cudaSuccess && found != known.end()) {
    count = found->second;
    return {};
  }
  if (std::string error = allow_shared_memory(kernel, smem_bytes); !error.empty()) return error;
  const LaunchConfig launch(ctas == 0 ? cluster_ctas : ctas, cluster_ctas, threads, smem_bytes);
  if (status == cudaSuccess) status = cudaOccupancyMaxActiveClusters(&value, kernel, &launch.config);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    return std::string("cudaOccupancyMaxActiveClusters: ") + cudaGetErrorString(status);
  }
  known[key] = value;
  count = value;
  return {};
}

// How many multiprocessors the current device has. Returns "" or CUDA's own words for what failed.
inline std::string multiprocessors(int64_t& count) {
  int device = 0, value = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device);
  count = value;
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  return std::string("cudaDeviceGetAttribute: ") + cudaGetErrorString(status);
}

// Calls f.template operator()<kLhsTransposed, kRhsTransposed>() for the problem's layout.
template <class F>
auto dispatch_layout(Layout layout, F&& f) {
  switch (layout) {
    case Layout::kNN: return f.template operator()<false, false>();
    case Layout::kNT: return f.template operator()<false, true>();
    case Layout::kTN: return f.template operator()<true, false>();
    case Layout::kTT: break;
  }
  return f.template operator()<true, true>();
}

}  // namespace jaxgemm

// The rows of one family, for registry.cc. The Configs live in an anonymous namespace: two families with one struct
// name would otherwise be merged by the linker.
#define JAXGEMM_FAMILY(family, ...)                                     \
  namespace jaxgemm {                                                   \
  static constexpr const Kernel* family##_rows[] = {__VA_ARGS__};       \
  extern const std::span<const Kernel* const> family##_kernels;         \
  const std::span<const Kernel* const> family##_kernels{family##_rows}; \
  }
