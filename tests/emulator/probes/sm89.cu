// Probes of mma with 8-bit floating point, one warp each.
#include "probes/fp8_bits.cuh"
#include "probes/mma_operands.cuh"
#include "ptx/mma.cuh"

namespace jaxgemm::probes {
namespace {

// Four of a word's small integers.
template <class T>
__device__ uint32_t small_quad(uint32_t word) {
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= fp8_bits<T>(small(word, i)) << 8 * i;
  return bits;
}

template <class TA, class TB>
struct MmaFp8 : MmaWords {
  static __device__ void run(Shared&, const uint32_t* in, uint32_t* out) {
    run_mma(in, out, small_quad<TA>, small_quad<TB>,
            [](auto& d, auto& a, auto& b) { ptx::mma_m16n8k32_fp8<TA, TB>(d, a, b); });
  }
};

template <class T>
struct UnitQuad {
  static constexpr int kElems = 4;
  static constexpr uint32_t kOne = Fp8<T>::kBias << Fp8<T>::kMantissaBits;
  // Numbers that are not finite lose a bit of their exponents.
  static __device__ uint32_t finite(uint32_t word) {
    for (int shift = 0; shift < 32; shift += 8) {
      if ((word >> shift & 0x7f) > Fp8<T>::kLargest) word &= ~(1u << Fp8<T>::kMantissaBits << shift);
    }
    return word;
  }
  static __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k32_fp8<T, T>(d, a, b);
  }
};

constexpr Probe kProbes[] = {
    probe<MmaFp8<ptx::E4m3, ptx::E4m3>>("mma.m16n8k32.e4m3.e4m3"),
    probe<MmaFp8<ptx::E4m3, ptx::E5m2>>("mma.m16n8k32.e4m3.e5m2"),
    probe<MmaFp8<ptx::E5m2, ptx::E4m3>>("mma.m16n8k32.e5m2.e4m3"),
    probe<MmaFp8<ptx::E5m2, ptx::E5m2>>("mma.m16n8k32.e5m2.e5m2"),
    probe<MmaUnit<UnitQuad<ptx::E4m3>>>("mma.m16n8k32.e4m3.unit"),
    probe<MmaUnit<UnitQuad<ptx::E5m2>>>("mma.m16n8k32.e5m2.unit"),
};

}  // namespace

std::span<const Probe> sm89_probes() { return kProbes; }

}  // namespace jaxgemm::probes
