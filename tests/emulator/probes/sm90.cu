// Probes of the Hopper-class instructions: matrix descriptors, accumulators and register fragments of wgmma, TMA's
// swizzles and bounds, multicast, clusters and mbarriers.
#include <cstring>

#include "launch.cuh"
#include "probes/probe.h"
#include "ptx/address.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_storage.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/tensor_map.h"

namespace jaxgemm::probes {
namespace {

using ptx::Major;
using ptx::Mbarrier;
using ptx::Swizzle;

__device__ int thread() { return static_cast<int>(threadIdx.x); }

// A small integer from four bits of a word: -8 to 7, so that sums of products are exact.
__device__ float small(uint32_t word, int nibble) {
  return static_cast<float>(static_cast<int>(word >> 4 * nibble & 15) - 8);
}

template <class T>
__device__ uint32_t bits_of(float x) {
  if constexpr (std::is_same_v<T, __half>) return __half_as_ushort(__float2half_rn(x));
  if constexpr (!std::is_same_v<T, __half>) return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

template <class T>
__device__ uint32_t small_pair(uint32_t word, int nibble) {
  return bits_of<T>(small(word, nibble)) | bits_of<T>(small(word, nibble + 1)) << 16;
}

// --- wgmma -----------------------------------------------------------------------------------------------------------

// An operand's region of shared memory is filled all over; a descriptor that is read in another way than the GPU does
// finds other elements.
constexpr int kRegionWords = 8192;

struct WgmmaStorage {
  alignas(1024) uint32_t a[kRegionWords];
  alignas(1024) uint32_t b[kRegionWords];
};

// How an operand of `extent` x 16 lies in its region. Strides leave gaps, so that no two of them are the same.
constexpr ptx::MatrixLayout layout_of(Major major, Swizzle swizzle, int extent) {
  const auto atom = static_cast<uint32_t>(8 * ptx::span_bytes(swizzle)), atoms = static_cast<uint32_t>(extent / 8);
  if (swizzle == Swizzle::kNone)
    return {.leading_bytes = atoms * (atom + 16) + 16, .stride_bytes = atom + 16, .swizzle = swizzle};
  if (major == Major::kMN) return {.leading_bytes = 3 * atom, .stride_bytes = atom, .swizzle = swizzle};
  return {.leading_bytes = 16, .stride_bytes = extent <= 128 ? 2 * atom : atom, .swizzle = swizzle};
}

template <Major kMajorOf, Swizzle kSwizzle, int kStartOf = 0, uint32_t... kLeading>
struct OperandCase {
  static constexpr Major kMajor = kMajorOf;
  static constexpr int kStart = kStartOf;  // bytes into the region
  template <int kExtent>
  static constexpr ptx::MatrixLayout kLayout = [] {
    ptx::MatrixLayout layout = layout_of(kMajor, kSwizzle, kExtent);
    ((layout.leading_bytes = kLeading), ...);
    return layout;
  }();
};

struct InRegisters {};

template <class T, int kN, class A, class B>
__global__ void __launch_bounds__(ptx::kWarpgroupThreads) wgmma_kernel(const uint32_t* in, uint32_t* out) {
  auto& smem = shared_storage<WgmmaStorage>();
  for (int i = thread(); i < kRegionWords; i += ptx::kWarpgroupThreads) {
    smem.a[i] = small_pair<T>(in[i], 0);
    smem.b[i] = small_pair<T>(in[i], 2);
  }
  ptx::fence_proxy_async();
  __syncthreads();

  float d[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[i] = small(in[(thread() * (kN / 2) + i) % kRegionWords], 4);
  const uint64_t b = ptx::matrix_descriptor(ptx::shared_address(smem.b) + B::kStart, B::template kLayout<kN>);
  if constexpr (std::is_same_v<A, InRegisters>) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = small_pair<T>(in[thread() * 4 + i], 5);
    ptx::wgmma_fence();
    ptx::wgmma<T, kN, B::kMajor>(d, a, b, 1);
  } else {
    const uint64_t a =
        ptx::matrix_descriptor(ptx::shared_address(smem.a) + A::kStart, A::template kLayout<ptx::kWgmmaM>);
    ptx::wgmma_fence();
    ptx::wgmma<T, kN, A::kMajor, B::kMajor>(d, a, b, 1);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(d);
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    uint32_t bits;
    memcpy(&bits, &d[i], sizeof bits);
    out[thread() * (kN / 2) + i] = bits;
  }
}

template <class T, int kN, class A, class B>
std::string launch_wgmma(const uint32_t* in, uint32_t* out, void* stream) {
  return launch_kernel(wgmma_kernel<T, kN, A, B>, 1, ptx::kWarpgroupThreads, sizeof(WgmmaStorage), stream, in, out);
}

template <class T, int kN, class A, class B>
constexpr Probe wgmma_probe(std::string_view name) {
  return {name, kRegionWords, ptx::kWarpgroupThreads * kN / 2, &launch_wgmma<T, kN, A, B>};
}

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
std::string encode(CUtensorMap& map, const void* data, int rank) {
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
                                 .swizzle = kSwizzle});
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

template <class T, Swizzle kSwizzle, int kRank>
std::string launch_load(const uint32_t* in, uint32_t* out, void* stream) {
  CUtensorMap map;
  if (std::string error = encode<T, kSwizzle>(map, in, kRank); !error.empty()) return error;
  return launch_kernel(load_kernel<T, kSwizzle, kRank>, 1, 32, sizeof(TmaStorage<kBoxWords<T, kSwizzle>>), stream, map,
                       out);
}

template <class T, Swizzle kSwizzle, int kRank>
constexpr Probe load_probe(std::string_view name) {
  return {name, Tensor<T>::kWords, kOrigins * kBoxWords<T, kSwizzle>, &launch_load<T, kSwizzle, kRank>};
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
  return launch_kernel<kClusterCtas>(cluster_kernel, kClusterCtas, 32, sizeof(ClusterStorage), stream, map, in, out);
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

template <Swizzle kSwizzle, int kStart = 0>
using K = OperandCase<Major::kK, kSwizzle, kStart>;
template <Swizzle kSwizzle, int kStart = 0>
using Mn = OperandCase<Major::kMN, kSwizzle, kStart>;
constexpr Swizzle kNone = Swizzle::kNone, k32 = Swizzle::k32B, k64 = Swizzle::k64B, k128 = Swizzle::k128B;
using F16 = __half;
using Bf16 = __nv_bfloat16;

constexpr Probe kProbes[] = {
    // Every layout, as A and as B.
    wgmma_probe<Bf16, 128, K<kNone>, K<kNone>>("wgmma.k.k.none"),
    wgmma_probe<Bf16, 128, K<k32>, K<k32>>("wgmma.k.k.32"),
    wgmma_probe<Bf16, 128, K<k64>, K<k64>>("wgmma.k.k.64"),
    wgmma_probe<Bf16, 128, K<k128>, K<k128>>("wgmma.k.k.128"),
    wgmma_probe<F16, 128, Mn<kNone>, Mn<kNone>>("wgmma.mn.mn.none"),
    wgmma_probe<F16, 128, Mn<k32>, Mn<k32>>("wgmma.mn.mn.32"),
    wgmma_probe<F16, 128, Mn<k64>, Mn<k64>>("wgmma.mn.mn.64"),
    wgmma_probe<F16, 128, Mn<k128>, Mn<k128>>("wgmma.mn.mn.128"),
    // Operands that differ, and other widths.
    wgmma_probe<F16, 8, K<k128>, K<k64>>("wgmma.k128.k64.n8"),
    wgmma_probe<Bf16, 64, Mn<k64>, K<k128>>("wgmma.mn64.k128.n64"),
    wgmma_probe<Bf16, 64, K<k32>, Mn<k128>>("wgmma.k32.mn128.n64"),
    wgmma_probe<F16, 208, K<kNone>, Mn<k32>>("wgmma.knone.mn32.n208"),
    wgmma_probe<Bf16, 256, Mn<kNone>, K<k128>>("wgmma.mnnone.k128.n256"),
    wgmma_probe<F16, 256, K<k64>, Mn<k128>>("wgmma.k64.mn128.n256"),
    // Tiles that start within an atom, as the slices of a k-tile do.
    wgmma_probe<Bf16, 64, K<k128, 32>, K<k128, 96>>("wgmma.start.128"),
    wgmma_probe<Bf16, 64, K<k64, 32>, K<k64, 32>>("wgmma.start.64"),
    wgmma_probe<Bf16, 64, Mn<k128, 2048>, Mn<k128, 4096>>("wgmma.start.mn128"),
    // A leading offset that the layout does not use.
    wgmma_probe<Bf16, 64, OperandCase<Major::kK, k128, 0, 4096>, OperandCase<Major::kK, k64, 0, 0>>("wgmma.unused"),
    wgmma_probe<F16, 64, InRegisters, K<k128>>("wgmma.registers.f16"),
    wgmma_probe<Bf16, 128, InRegisters, Mn<k128>>("wgmma.registers.bf16"),
    load_probe<Bf16, kNone, 2>("tma.load.2d.none"),
    load_probe<Bf16, k32, 3>("tma.load.3d.32"),
    load_probe<Bf16, k64, 3>("tma.load.3d.64"),
    load_probe<Bf16, k128, 2>("tma.load.2d.128"),
    load_probe<float, kNone, 3>("tma.load.3d.none.f32"),
    load_probe<float, k32, 2>("tma.load.2d.32.f32"),
    load_probe<float, k128, 3>("tma.load.3d.128.f32"),
    store_probe<Bf16, kNone, 3>("tma.store.3d.none"),
    store_probe<Bf16, k32, 2>("tma.store.2d.32"),
    store_probe<Bf16, k64, 3>("tma.store.3d.64"),
    store_probe<Bf16, k128, 3>("tma.store.3d.128"),
    store_probe<float, k128, 2>("tma.store.2d.128.f32"),
    {"tma.multicast", Tensor<Element>::kWords, kClusterCtas * kWordsOfCta, &launch_cluster},
    {"mbarrier", 1, kLooks, &launch_mbarrier},
};

}  // namespace

std::span<const Probe> sm90_probes() { return kProbes; }

}  // namespace jaxgemm::probes
