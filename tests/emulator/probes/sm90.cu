// Probes of the Hopper-class instructions that move data: TMA's swizzles and bounds, multicast, clusters and mbarriers.
#include "launch.cuh"
#include "probes/probe.h"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_storage.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma_types.cuh"
#include "tile/tensor_map.h"

namespace jaxgemm::probes {
namespace {

using ptx::Mbarrier;
using ptx::Swizzle;

__device__ int thread() { return static_cast<int>(threadIdx.x); }

// --- TMA -------------------------------------------------------------------------------------------------------------

// The tensor: `in` or `out` as kPlanes matrices of kRows x kRowElems.
template <class T>
struct Tensor {
  static constexpr int kRowBytes = 144, kRowElems = kRowBytes / static_cast<int>(sizeof(T)), kRows = 20, kPlanes = 3;
  static constexpr int kWords = kPlanes * kRows * kRowBytes / 4;
  static constexpr DType kDType = sizeof(T) == 4 ? DType::kF32 : DType::kBF16;
};

constexpr int kBoxRows = 16;

// Of boxes to load, innermost coordinate first (a multiple of 16 bytes): inside; before the beginning; across the end;
// on planes that do not exist; beyond the end; across both.
constexpr int kOrigins = 6;
__device__ int origin(int box, int dimension) {
  constexpr int kCoordinates[kOrigins][3] = {{8, 1, 0}, {-8, -3, 1}, {24, 9, 2}, {0, 2, -1}, {200, 0, 0}, {-16, 15, 1}};
  return kCoordinates[box][dimension];
}

template <class T, Swizzle kSwizzle>
constexpr int kBoxElems = (kSwizzle == Swizzle::kNone ? 48 : ptx::span_bytes(kSwizzle)) / static_cast<int>(sizeof(T));

template <class T, Swizzle kSwizzle>
constexpr int kBoxWords = kBoxRows * kBoxElems<T, kSwizzle> * static_cast<int>(sizeof(T)) / 4;

template <class T, Swizzle kSwizzle>
std::string encode(CUtensorMap& map, const void* data, int rank, bool tf32 = false) {
  using Of = Tensor<T>;
  return encode_tensor_map(map, {.data = data,
                                 .dtype = Of::kDType,
                                 .rank = rank,
                                 .inner = Of::kRowElems - 3,  // ends within a 16-byte chunk
                                 .outer = Of::kRows,
                                 .batch = Of::kPlanes,
                                 .outer_stride = Of::kRowElems,
                                 .batch_stride = Of::kRows * Of::kRowElems,
                                 .box_inner = kBoxElems<T, kSwizzle>,
                                 .box_outer = kBoxRows,
                                 .swizzle = kSwizzle,
                                 .rounds_to_tf32 = tf32});
}

template <int kWords>
struct TmaStorage {
  alignas(1024) uint32_t boxes[kOrigins][(kWords + 255) / 256 * 256];
  Mbarrier full;
};

template <class T, Swizzle kSwizzle, int kRank>
__global__ void __launch_bounds__(32) load_kernel(const __grid_constant__ CUtensorMap map, uint32_t* out) {
  constexpr int kWords = kBoxWords<T, kSwizzle>;
  auto& smem = shared_storage<TmaStorage<kWords>>();
  if (thread() == 0) {
    ptx::mbarrier_init(smem.full, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(smem.full, kOrigins * kWords * 4);
#pragma unroll
    for (int i = 0; i < kOrigins; ++i) {
      if constexpr (kRank == 2) ptx::tma_load_2d(smem.boxes[i], map, smem.full, origin(i, 0), origin(i, 1));
      if constexpr (kRank == 3) {
        ptx::tma_load_3d(smem.boxes[i], map, smem.full, origin(i, 0), origin(i, 1), origin(i, 2));
      }
    }
  }
  __syncthreads();
  ptx::mbarrier_wait(smem.full, 0);
  for (int i = 0; i < kOrigins; ++i) {
    for (int word = thread(); word < kWords; word += 32) out[i * kWords + word] = smem.boxes[i][word];
  }
}

template <class T, Swizzle kSwizzle, int kRank, bool kTf32>
std::string launch_load(const uint32_t* in, uint32_t* out, void* stream) {
  CUtensorMap map;
  if (std::string error = encode<T, kSwizzle>(map, in, kRank, kTf32); !error.empty()) return error;
  return launch_kernel(load_kernel<T, kSwizzle, kRank>, 1, 32, sizeof(TmaStorage<kBoxWords<T, kSwizzle>>), stream, map,
                       out);
}

template <class T, Swizzle kSwizzle, int kRank, bool kTf32 = false>
constexpr Probe load_probe(std::string_view name) {
  return {name, Tensor<T>::kWords, kOrigins * kBoxWords<T, kSwizzle>, &launch_load<T, kSwizzle, kRank, kTf32>};
}

__global__ void __launch_bounds__(256) fill_kernel(uint32_t* out, int words) {
  const int word = static_cast<int>(blockIdx.x) * 256 + thread();
  if (word < words) out[word] = 0xAAAAAAAA;
}

// Boxes that do not overlap in the tensor.
template <class T, Swizzle kSwizzle, int kRank>
__global__ void __launch_bounds__(32) store_kernel(const __grid_constant__ CUtensorMap map, const uint32_t* in) {
  constexpr int kWords = kBoxWords<T, kSwizzle>;
  auto& smem = shared_storage<TmaStorage<kWords>>();
  for (int i = 0; i < 2; ++i) {
    for (int word = thread(); word < kWords; word += 32) smem.boxes[i][word] = in[i * kWords + word];
  }
  ptx::fence_proxy_async();
  __syncthreads();
  if (thread() == 0) {
    constexpr int kFar = (Tensor<T>::kRowElems - kBoxElems<T, kSwizzle> / 2) / 8 * 8;
    if constexpr (kRank == 2) {
      ptx::tma_store_2d(map, smem.boxes[0], 0, 0);
      ptx::tma_store_2d(map, smem.boxes[1], kFar, kBoxRows);
    } else {
      ptx::tma_store_3d(map, smem.boxes[0], 0, 0, 1);
      ptx::tma_store_3d(map, smem.boxes[1], kFar, kBoxRows, 2);
    }
    ptx::tma_commit_group();
    ptx::tma_wait_group<0>();
  }
}

template <class T, Swizzle kSwizzle, int kRank>
std::string launch_store(const uint32_t* in, uint32_t* out, void* stream) {
  constexpr int kWords = Tensor<T>::kWords;
  CUtensorMap map;
  if (std::string error = encode<T, kSwizzle>(map, out, kRank); !error.empty()) return error;
  if (std::string error = launch_kernel(fill_kernel, (kWords + 255) / 256, 256, 0, stream, out, kWords);
      !error.empty()) {
    return error;
  }
  return launch_kernel(store_kernel<T, kSwizzle, kRank>, 1, 32, sizeof(TmaStorage<kBoxWords<T, kSwizzle>>), stream, map,
                       in);
}

template <class T, Swizzle kSwizzle, int kRank>
constexpr Probe store_probe(std::string_view name) {
  return {name, 2 * kBoxWords<T, kSwizzle>, Tensor<T>::kWords, &launch_store<T, kSwizzle, kRank>};
}

// --- clusters and mbarriers ------------------------------------------------------------------------------------------

using Element = __nv_bfloat16;
constexpr Swizzle kMulticastSwizzle = Swizzle::k128B;
constexpr int kMulticastWords = kBoxWords<Element, kMulticastSwizzle>;
constexpr int kClusterCtas = 2, kWordsOfCta = kClusterCtas * kMulticastWords + 1;

struct ClusterStorage {
  alignas(1024) uint32_t boxes[kClusterCtas][kMulticastWords];
  uint32_t word;
  Mbarrier full, told;
};

// Each CTA loads one box for both, and reads a word that the other one wrote.
__global__ void __launch_bounds__(32)
    cluster_kernel(const __grid_constant__ CUtensorMap map, const uint32_t* in, uint32_t* out) {
  auto& smem = shared_storage<ClusterStorage>();
  const int rank = ptx::cluster_ctarank(), other = rank ^ 1;
  if (thread() == 0) {
    ptx::mbarrier_init(smem.full, 1);
    ptx::mbarrier_init(smem.told, kClusterCtas);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(smem.full, kClusterCtas * kMulticastWords * 4);
    smem.word = in[rank];
  }
  __syncwarp();
  ptx::cluster_sync();
  if (thread() == 0) {
    ptx::tma_load_multicast_3d(smem.boxes[rank], map, smem.full, 8 - 16 * rank, 1 - 4 * rank, rank,
                               (1 << kClusterCtas) - 1);
    ptx::mbarrier_arrive(smem.told);
    ptx::mbarrier_arrive_remote(smem.told, other);
  }
  __syncwarp();
  ptx::mbarrier_wait(smem.full, 0);
  ptx::mbarrier_wait(smem.told, 0);
  uint32_t* g_out = out + rank * kWordsOfCta;
  for (int word = thread(); word < kClusterCtas * kMulticastWords; word += 32) {
    g_out[word] = smem.boxes[word / kMulticastWords][word % kMulticastWords];
  }
  if (thread() == 0) g_out[kWordsOfCta - 1] = *ptx::map_shared_rank(&smem.word, other);
  __syncwarp();
  ptx::cluster_sync();
}

std::string launch_cluster(const uint32_t* in, uint32_t* out, void* stream) {
  CUtensorMap map;
  if (std::string error = encode<Element, kMulticastSwizzle>(map, in, 3); !error.empty()) return error;
  return launch_clusters(kClusterCtas, cluster_kernel, kClusterCtas, 32, sizeof(ClusterStorage), stream, map, in, out);
}

struct ToldStorage {
  uint32_t word;
  unsigned sent;
  Mbarrier told, landed;
};

// Each CTA reads a word that the other one wrote before it arrived here, and one that the other one sent.
__global__ void __launch_bounds__(32) told_kernel(const uint32_t* in, uint32_t* out) {
  auto& smem = shared_storage<ToldStorage>();
  const int rank = ptx::cluster_ctarank(), other = rank ^ 1;
  if (thread() == 0) {
    ptx::mbarrier_init(smem.told, 1);
    ptx::mbarrier_init(smem.landed, 1);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  ptx::cluster_sync();
  if (thread() == 0) {
    smem.word = in[rank];
    ptx::mbarrier_arrive_cluster(smem.told, other);
    ptx::mbarrier_arrive_expect_tx(smem.landed, sizeof smem.sent);
    ptx::store_async(smem.sent, in[kClusterCtas + rank], smem.landed, other);
    ptx::mbarrier_wait_cluster(smem.told, 0);
    out[2 * rank] = *ptx::map_shared_rank(&smem.word, other);
    ptx::mbarrier_wait(smem.landed, 0);
    out[2 * rank + 1] = smem.sent;
  }
  __syncwarp();
  ptx::cluster_sync();
}

std::string launch_told(const uint32_t* in, uint32_t* out, void* stream) {
  return launch_clusters(kClusterCtas, told_kernel, kClusterCtas, 32, sizeof(ToldStorage), stream, in, out);
}

struct BarrierStorage {
  Mbarrier barrier;
};
constexpr int kLooks = 6;

// What a thread sees of a barrier of two arrivals.
__global__ void __launch_bounds__(32) mbarrier_kernel(uint32_t* out) {
  Mbarrier& barrier = shared_storage<BarrierStorage>().barrier;
  if (thread() != 0) return;
  int looks = 0;
  const auto look = [&](uint32_t parity) { out[looks++] = ptx::mbarrier_try_wait(barrier, parity); };
  ptx::mbarrier_init(barrier, 2);
  look(1);
  look(0);
  ptx::mbarrier_arrive(barrier);
  look(0);
  ptx::mbarrier_arrive(barrier);
  look(0);
  look(1);
  ptx::mbarrier_arrive(barrier);
  ptx::mbarrier_arrive(barrier);
  look(1);
}

std::string launch_mbarrier(const uint32_t*, uint32_t* out, void* stream) {
  return launch_kernel(mbarrier_kernel, 1, 32, sizeof(BarrierStorage), stream, out);
}

// --- the list --------------------------------------------------------------------------------------------------------

constexpr Swizzle kNone = Swizzle::kNone, k32 = Swizzle::k32B, k64 = Swizzle::k64B, k128 = Swizzle::k128B;
using Bf16 = __nv_bfloat16;

constexpr Probe kProbes[] = {
    load_probe<Bf16, kNone, 2>("tma.load.2d.none"),
    load_probe<Bf16, k32, 3>("tma.load.3d.32"),
    load_probe<Bf16, k64, 3>("tma.load.3d.64"),
    load_probe<Bf16, k128, 2>("tma.load.2d.128"),
    load_probe<float, kNone, 3>("tma.load.3d.none.f32"),
    load_probe<float, k32, 2>("tma.load.2d.32.f32"),
    load_probe<float, k128, 3>("tma.load.3d.128.f32"),
    load_probe<float, k128, 3, true>("tma.load.3d.128.tf32"),
    store_probe<Bf16, kNone, 3>("tma.store.3d.none"),
    store_probe<Bf16, k32, 2>("tma.store.2d.32"),
    store_probe<Bf16, k64, 3>("tma.store.3d.64"),
    store_probe<Bf16, k128, 3>("tma.store.3d.128"),
    store_probe<float, k128, 2>("tma.store.2d.128.f32"),
    {"tma.multicast", Tensor<Element>::kWords, kClusterCtas * kWordsOfCta, &launch_cluster},
    {"mbarrier", 1, kLooks, &launch_mbarrier},
    {"mbarrier.cluster", 2 * kClusterCtas, 2 * kClusterCtas, &launch_told},
};

}  // namespace

std::span<const Probe> sm90_probes() { return kProbes; }

}  // namespace jaxgemm::probes
