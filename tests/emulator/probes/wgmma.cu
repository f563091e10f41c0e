// Probes of wgmma: matrix descriptors, accumulators and register fragments of all types.
#include <cstring>

#include "launch.cuh"
#include "probes/fp8_bits.cuh"
#include "probes/probe.h"
#include "ptx/address.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pin.cuh"
#include "ptx/shared_storage.cuh"
#include "ptx/wgmma.cuh"

namespace jaxgemm::probes {
namespace {

using ptx::Major;
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

// An operand's region of shared memory is filled all over; a descriptor that is read in another way than the GPU does
// finds other elements.
constexpr int kRegionWords = 8192;

struct WgmmaStorage {
  alignas(1024) uint32_t a[kRegionWords];
  alignas(1024) uint32_t b[kRegionWords];
};

// How an operand of `extent` rows of 32 bytes lies in its region. Strides leave gaps, so that no two of them are the
// same.
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

// What is multiplied. kLowBits: with bits that tf32 doesn't have.
template <class TA, class TB = TA, bool kLowBitsOf = false>
struct Elements {
  using A = TA;
  using B = TB;
  static constexpr bool kLowBits = kLowBitsOf;
};

// Elements that fill 32 bits: small integers from one nibble each, the first from this one; of int8, any.
template <class T, bool kLowBits>
__device__ uint32_t operand_word(uint32_t word, int nibble) {
  if constexpr (std::is_same_v<T, int8_t>) {
    return word * static_cast<uint32_t>(2 * nibble + 1);
  } else if constexpr (std::is_same_v<T, float>) {
    return __float_as_uint(small(word, nibble)) | (kLowBits ? word >> 19 : 0);
  } else if constexpr (ptx::kIsFp8<T>) {
    uint32_t quad = 0;
    for (int i = 0; i < 4; ++i) quad |= fp8_bits<T>(static_cast<int>(small(word, (nibble + i) % 8))) << 8 * i;
    return quad;
  } else {
    return bits_of<T>(small(word, nibble)) | bits_of<T>(small(word, nibble + 1)) << 16;
  }
}

// Integers are near the ends of int32, so that sums wrap around.
template <class Sum>
__device__ Sum accumulator(uint32_t word) {
  if constexpr (std::is_same_v<Sum, float>) return small(word, 4);
  if constexpr (!std::is_same_v<Sum, float>) return static_cast<Sum>((word & 1 ? 0x7fffffff : 0x80000000) ^ word >> 17);
}

template <class Of, int kN, class A, class B>
__global__ void __launch_bounds__(ptx::kWarpgroupThreads) wgmma_kernel(const uint32_t* in, uint32_t* out) {
  using TA = typename Of::A;
  using TB = typename Of::B;
  using Sum = ptx::WgmmaSum<TA>;
  auto& smem = shared_storage<WgmmaStorage>();
  for (int i = thread(); i < kRegionWords; i += ptx::kWarpgroupThreads) {
    smem.a[i] = operand_word<TA, Of::kLowBits>(in[i], 0);
    smem.b[i] = operand_word<TB, Of::kLowBits>(in[i], 2);
  }
  ptx::fence_proxy_async();
  __syncthreads();

  Sum d[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[i] = accumulator<Sum>(in[(thread() * (kN / 2) + i) % kRegionWords]);
  const uint64_t b = ptx::matrix_descriptor(ptx::shared_address(smem.b) + B::kStart, B::template kLayout<kN>);
  if constexpr (std::is_same_v<A, InRegisters>) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = operand_word<TA, Of::kLowBits>(in[thread() * 4 + i], 5);
    ptx::wgmma_fence();
    ptx::wgmma<TA, TB, kN, B::kMajor>(d, a, b, 1);
  } else {
    const uint64_t a =
        ptx::matrix_descriptor(ptx::shared_address(smem.a) + A::kStart, A::template kLayout<ptx::kWgmmaM>);
    ptx::wgmma_fence();
    ptx::wgmma<TA, TB, kN, A::kMajor, B::kMajor>(d, a, b, 1);
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

template <class Of, int kN, class A, class B>
std::string launch_wgmma(const uint32_t* in, uint32_t* out, void* stream) {
  return launch_kernel(wgmma_kernel<Of, kN, A, B>, 1, ptx::kWarpgroupThreads, sizeof(WgmmaStorage), stream, in, out);
}

template <class Of, int kN, class A, class B>
constexpr Probe wgmma_probe(std::string_view name) {
  return {name, kRegionWords, ptx::kWarpgroupThreads * kN / 2, &launch_wgmma<Of, kN, A, B>};
}

template <Swizzle kSwizzle, int kStart = 0>
using K = OperandCase<Major::kK, kSwizzle, kStart>;
template <Swizzle kSwizzle, int kStart = 0>
using Mn = OperandCase<Major::kMN, kSwizzle, kStart>;
constexpr Swizzle kNone = Swizzle::kNone, k32 = Swizzle::k32B, k64 = Swizzle::k64B, k128 = Swizzle::k128B;
using F16 = Elements<__half>;
using Bf16 = Elements<__nv_bfloat16>;
using Tf32 = Elements<float>;
using LowBits = Elements<float, float, true>;
using S8 = Elements<int8_t>;
using E4m3 = Elements<ptx::E4m3>;
using E5m2 = Elements<ptx::E5m2>;
using E4m3E5m2 = Elements<ptx::E4m3, ptx::E5m2>;
using E5m2E4m3 = Elements<ptx::E5m2, ptx::E4m3>;

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
    // The other types, of which K-major layouts are the same in bytes.
    wgmma_probe<Tf32, 128, K<k128>, K<k128>>("wgmma.tf32"),
    wgmma_probe<S8, 128, K<k128>, K<k128>>("wgmma.s8"),
    wgmma_probe<E4m3, 128, K<k128>, K<k128>>("wgmma.e4m3"),
    wgmma_probe<E5m2, 128, K<k128>, K<k128>>("wgmma.e5m2"),
    wgmma_probe<E4m3E5m2, 128, K<k128>, K<k128>>("wgmma.e4m3.e5m2"),
    wgmma_probe<E5m2E4m3, 128, K<k128>, K<k128>>("wgmma.e5m2.e4m3"),
    wgmma_probe<LowBits, 128, K<k128>, K<k128>>("wgmma.tf32.low_bits"),
    wgmma_probe<Tf32, 256, K<k128, 32>, K<k128, 96>>("wgmma.start.tf32"),
    wgmma_probe<S8, 256, K<k128, 32>, K<k128, 96>>("wgmma.start.s8"),
    wgmma_probe<E4m3, 256, K<k128, 32>, K<k128, 96>>("wgmma.start.e4m3"),
    wgmma_probe<E5m2, 256, K<k128, 32>, K<k128, 96>>("wgmma.start.e5m2"),
    wgmma_probe<Tf32, 48, K<kNone>, K<k32>>("wgmma.knone.k32.tf32"),
    wgmma_probe<S8, 208, K<k64>, K<kNone>>("wgmma.k64.knone.s8"),
    wgmma_probe<Tf32, 64, InRegisters, K<k128>>("wgmma.registers.tf32"),
    wgmma_probe<S8, 64, InRegisters, K<k128>>("wgmma.registers.s8"),
    wgmma_probe<E4m3, 64, InRegisters, K<k128>>("wgmma.registers.e4m3"),
    wgmma_probe<E5m2, 64, InRegisters, K<k128>>("wgmma.registers.e5m2"),
};

}  // namespace

std::span<const Probe> wgmma_probes() { return kProbes; }

}  // namespace jaxgemm::probes
