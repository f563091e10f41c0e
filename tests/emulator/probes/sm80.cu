// Probes of the Ampere-class instructions, one warp each.
#include "probes/mma_operands.cuh"
#include "probes/one_warp.cuh"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/wmma.cuh"

namespace jaxgemm::probes {
namespace {

// --- ldmatrix, stmatrix ---------------------------------------------------------------------------------------------

template <int N>
struct MatrixStorage {
  alignas(16) uint32_t rows[8 * N][4];
};

// The row that a lane gives the address of: not its own, to see that rows go by address.
template <int N>
__device__ int row_of_lane() {
  return (lane() * 5 + 3) % (8 * N);
}

template <bool kTranspose, int N>
struct Ldmatrix {
  static constexpr int kInWords = kLanes * N, kOutWords = kLanes * N;
  using Shared = MatrixStorage<N>;
  static __device__ void run(Shared& smem, const uint32_t* in, uint32_t* out) {
    for (int i = 0; i < N; ++i) {
      const int word = lane() + i * kLanes;
      smem.rows[word / 4][word % 4] = in[word];
    }
    __syncthreads();
    uint32_t r[N];
    ptx::ldmatrix<kTranspose>(r, smem.rows[row_of_lane<N>()]);
    for (int i = 0; i < N; ++i) out[lane() * N + i] = r[i];
  }
};

template <bool kTranspose, int N>
struct Stmatrix {
  static constexpr int kInWords = kLanes * N, kOutWords = kLanes * N;
  using Shared = MatrixStorage<N>;
  static __device__ void run([[maybe_unused]] Shared& smem, [[maybe_unused]] const uint32_t* in,
                             [[maybe_unused]] uint32_t* out) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // older GPUs do not have it, and nobody launches this there
    uint32_t r[N];
    for (int i = 0; i < N; ++i) r[i] = in[lane() * N + i];
    ptx::stmatrix<kTranspose>(smem.rows[row_of_lane<N>()], r);
    __syncthreads();
    for (int i = 0; i < N; ++i) {
      const int word = lane() + i * kLanes;
      out[word] = smem.rows[word / 4][word % 4];
    }
#endif
  }
};

// --- cp.async -------------------------------------------------------------------------------------------------------

// Each lane copies another number of bytes over memory that is not zero.
template <int kBytes>
struct CpAsync {
  static constexpr int kWords = kBytes / 4;
  static constexpr int kInWords = kLanes * kWords, kOutWords = kInWords;
  struct Shared {
    alignas(16) uint32_t words[kLanes][kWords];
  };
  static __device__ void run(Shared& smem, const uint32_t* in, uint32_t* out) {
    for (int i = 0; i < kWords; ++i) smem.words[lane()][i] = 0xAAAAAAAA;
    const int valid_bytes = lane() % (kBytes + 1);
    if constexpr (kBytes == 16) {
      const uint32_t* from = in + lane() * kWords;
      valid_bytes == kBytes ? ptx::cp_async_16(smem.words[lane()], from)
                            : ptx::cp_async_16(smem.words[lane()], from, valid_bytes);
    } else {
      ptx::cp_async<kBytes>(smem.words[lane()], in + lane() * kWords, valid_bytes);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    for (int i = 0; i < kWords; ++i) out[lane() * kWords + i] = smem.words[lane()][i];
  }
};

// Three groups of one copy each, the first two waited for by wait_group, the last one, which is not committed, by
// wait_all.
struct CpAsyncGroups {
  static constexpr int kInWords = kLanes * 3, kOutWords = kInWords;
  struct Shared {
    uint32_t words[3][kLanes];
  };
  static __device__ void run(Shared& smem, const uint32_t* in, uint32_t* out) {
    const auto copy = [&](int i) { ptx::cp_async<4>(&smem.words[i][lane()], in + i * kLanes + lane(), 4); };
    const auto write = [&](int i) { out[i * kLanes + lane()] = smem.words[i][lane()]; };
    copy(0);
    ptx::cp_async_commit();
    copy(1);
    ptx::cp_async_commit();
    copy(2);
    ptx::cp_async_wait<1>();
    write(0);
    ptx::cp_async_wait<0>();
    write(1);
    ptx::cp_async_wait_all();
    write(2);
  }
};

// --- mma ------------------------------------------------------------------------------------------------------------

template <class T>
struct Mma : MmaWords {
  static __device__ void run(Shared&, const uint32_t* in, uint32_t* out) {
    run_mma(in, out, small_pair<T>, small_pair<T>, [](auto& d, auto& a, auto& b) { ptx::mma_m16n8k16<T>(d, a, b); });
  }
};

// d += a * b with float16 accumulators, which must hold d exactly.
__device__ void multiply_in_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  uint32_t pairs[2] = {ptx::pack<__half>(d[0], d[1]), ptx::pack<__half>(d[2], d[3])};
  ptx::mma_m16n8k16_f16(pairs, a, b);
  for (int i = 0; i < 4; ++i) {
    d[i] = __half2float(__ushort_as_half(static_cast<uint16_t>(pairs[i / 2] >> 16 * (i % 2))));
  }
}

// Sums stay below 2048, up to where float16 has all integers.
struct MmaF16 : MmaWords {
  static __device__ void run(Shared&, const uint32_t* in, uint32_t* out) {
    run_mma(in, out, small_pair<__half>, small_pair<__half>, multiply_in_f16);
  }
};

// With kLowBits the 13 bits that tf32 does not have are not zero.
template <bool kLowBits>
struct MmaTf32 : MmaWords {
  static __device__ void run(Shared&, const uint32_t* in, uint32_t* out) {
    const auto operand = [](uint32_t word) {
      return ptx::to_tf32(static_cast<float>(small(word, 0))) | (kLowBits ? word >> 8 & 0x1fff : 0u);
    };
    run_mma(in, out, operand, operand, [](auto& d, auto& a, auto& b) { ptx::mma_m16n8k8_tf32(d, a, b); });
  }
};

template <class T>
struct UnitPair {
  static constexpr int kElems = 2;
  static constexpr uint32_t kOne = std::is_same_v<T, __half> ? 0x3c00 : 0x3f80;
  // Both elements lose a bit of their exponents; every fourth pair is subnormal.
  static __device__ uint32_t finite(uint32_t word) {
    constexpr uint32_t kExponentBit = std::is_same_v<T, __half> ? 0x04000400 : 0x00800080;
    constexpr uint32_t kExponent = std::is_same_v<T, __half> ? 0x7c007c00 : 0x7f807f80;
    return word & ~(word % 4 == 0 ? kExponent : kExponentBit);
  }
  static __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k16<T>(d, a, b);
  }
};

struct UnitPairInF16 : UnitPair<__half> {
  static __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    multiply_in_f16(d, a, b);
  }
};

struct UnitTf32 {
  static constexpr int kElems = 1;
  static constexpr uint32_t kOne = 0x3f800000;
  static __device__ uint32_t finite(uint32_t word) { return word & ~(word % 4 == 0 ? 0x7f800000u : 0x00800000u); }
  static __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k8_tf32(d, a, b);
  }
};

// All bits of all operands count, and sums wrap around.
struct MmaS8 : MmaWords {
  static __device__ void run(Shared&, const uint32_t* in, uint32_t* out) {
    uint32_t a[4], b[2];
    int32_t d[4];
    in += lane() * 10;
    for (int i = 0; i < 4; ++i) a[i] = in[i];
    for (int i = 0; i < 2; ++i) b[i] = in[4 + i];
    // Close to the largest and to the smallest number.
    for (int i = 0; i < 4; ++i)
      d[i] = static_cast<int32_t>((in[6 + i] & 1 ? 0x7fffffff : 0x80000000) ^ in[6 + i] >> 17);
    ptx::mma_m16n8k32_s8(d, a, b);
    for (int i = 0; i < 4; ++i) out[lane() * 4 + i] = static_cast<uint32_t>(d[i]);
  }
};

// --- wmma -----------------------------------------------------------------------------------------------------------

// Writes the product of operands that come from shared memory; then that plus the product of the same operands from
// global memory; then the operands, which it read from there.
template <class T, bool kAColMajor, bool kBColMajor>
struct Wmma {
  static constexpr int kTile = wmma::kTile, kElems = kTile * kTile;
  static constexpr int kInWords = kElems, kOutWords = 3 * kElems;
  static constexpr int kLd = kTile + 8;  // in shared memory
  struct Shared {
    alignas(wmma::kAlignmentBytes) T a[kTile * kLd];
    alignas(wmma::kAlignmentBytes) T b[kTile * kLd];
    alignas(wmma::kAlignmentBytes) float d[kTile * kLd];
  };

  static __device__ void write(Shared& smem, const wmma::Accumulator& accumulator, uint32_t* out) {
    __syncthreads();
    wmma::store_shared(smem.d, accumulator, kLd);
    __syncthreads();
    for (int i = lane(); i < kElems; i += kLanes) out[i] = float_bits(smem.d[i / kTile * kLd + i % kTile]);
  }

  static __device__ void run(Shared& smem, const uint32_t* in, uint32_t* out) {
    uint32_t* g_a = out + 2 * kElems;  // of elements, two to a word; those of b follow
    uint32_t* g_b = g_a + kElems / 2;
    for (int i = lane(); i < kElems / 2; i += kLanes) {
      const uint32_t a = small_pair<T>(in[i]), b = small_pair<T>(in[kElems / 2 + i]);
      const int at = i * 2 / kTile * kLd + i * 2 % kTile;
      reinterpret_cast<uint32_t*>(smem.a)[at / 2] = a;
      reinterpret_cast<uint32_t*>(smem.b)[at / 2] = b;
      g_a[i] = a;
      g_b[i] = b;
    }
    __syncthreads();
    wmma::FragmentA<T, kAColMajor> fragment_a;
    wmma::FragmentB<T, kBColMajor> fragment_b;
    wmma::Accumulator accumulator;
    wmma::load_shared(fragment_a, smem.a, kLd);
    wmma::load_shared(fragment_b, smem.b, kLd);
    wmma::mma(accumulator, fragment_a, fragment_b);
    write(smem, accumulator, out);
    wmma::load_global(fragment_a, reinterpret_cast<const T*>(g_a), kTile);
    wmma::load_global(fragment_b, reinterpret_cast<const T*>(g_b), kTile);
    wmma::mma(accumulator, fragment_a, fragment_b);
    write(smem, accumulator, out + kElems);
  }
};

// --- the lists ------------------------------------------------------------------------------------------------------

constexpr Probe kSm80Probes[] = {
    probe<Ldmatrix<false, 1>>("ldmatrix.x1"),
    probe<Ldmatrix<true, 1>>("ldmatrix.x1.trans"),
    probe<Ldmatrix<false, 2>>("ldmatrix.x2"),
    probe<Ldmatrix<true, 2>>("ldmatrix.x2.trans"),
    probe<Ldmatrix<false, 4>>("ldmatrix.x4"),
    probe<Ldmatrix<true, 4>>("ldmatrix.x4.trans"),
    probe<CpAsync<4>>("cp_async.4"),
    probe<CpAsync<8>>("cp_async.8"),
    probe<CpAsync<16>>("cp_async.16"),
    probe<CpAsyncGroups>("cp_async.groups"),
    probe<Mma<__half>>("mma.m16n8k16.f16"),
    probe<Mma<__nv_bfloat16>>("mma.m16n8k16.bf16"),
    probe<MmaTf32<false>>("mma.m16n8k8.tf32"),
    probe<MmaTf32<true>>("mma.m16n8k8.tf32.low_bits"),
    probe<MmaUnit<UnitPair<__half>>>("mma.m16n8k16.f16.unit"),
    probe<MmaUnit<UnitPair<__nv_bfloat16>>>("mma.m16n8k16.bf16.unit"),
    probe<MmaUnit<UnitTf32>>("mma.m16n8k8.tf32.unit"),
    probe<MmaS8>("mma.m16n8k32.s8"),
    probe<MmaF16>("mma.m16n8k16.f16.f16"),
    probe<MmaUnit<UnitPairInF16>>("mma.m16n8k16.f16.f16.unit"),
    probe<Wmma<__half, false, false>>("wmma.f16.row.row"),
    probe<Wmma<__half, false, true>>("wmma.f16.row.col"),
    probe<Wmma<__half, true, false>>("wmma.f16.col.row"),
    probe<Wmma<__half, true, true>>("wmma.f16.col.col"),
    probe<Wmma<__nv_bfloat16, false, false>>("wmma.bf16.row.row"),
    probe<Wmma<__nv_bfloat16, false, true>>("wmma.bf16.row.col"),
    probe<Wmma<__nv_bfloat16, true, false>>("wmma.bf16.col.row"),
    probe<Wmma<__nv_bfloat16, true, true>>("wmma.bf16.col.col"),
};

constexpr Probe kStmatrixProbes[] = {
    probe<Stmatrix<false, 1>>("stmatrix.x1"), probe<Stmatrix<true, 1>>("stmatrix.x1.trans"),
    probe<Stmatrix<false, 2>>("stmatrix.x2"), probe<Stmatrix<true, 2>>("stmatrix.x2.trans"),
    probe<Stmatrix<false, 4>>("stmatrix.x4"), probe<Stmatrix<true, 4>>("stmatrix.x4.trans"),
};

}  // namespace

std::span<const Probe> sm80_probes() { return kSm80Probes; }
std::span<const Probe> stmatrix_probes() { return kStmatrixProbes; }

}  // namespace jaxgemm::probes
