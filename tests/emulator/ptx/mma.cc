// The fragment layouts are those of PTX ISA, "Matrix Fragments for mma...", as cuda/ptx/mma.cuh sums them up.
//
// Products are exact in float32; sums are rounded to float32 after each product, in the order of K. Hardware adds
// several products at a time, with a rounding of its own: results agree bit by bit where sums are exact. float16
// accumulators are rounded once, after all products.
#include "ptx/mma.cuh"

#include "ptx/float_formats.h"

namespace emu {
namespace {

constexpr int kM = 16, kN = 8;

struct F16 {
  using Value = float;
  static constexpr int kPerRegister = 2;
  static Value element(uint32_t bits, int i) { return f16_to_float(static_cast<uint16_t>(bits >> 16 * i)); }
};
struct Bf16 {
  using Value = float;
  static constexpr int kPerRegister = 2;
  static Value element(uint32_t bits, int i) { return bf16_to_float(static_cast<uint16_t>(bits >> 16 * i)); }
};
struct Tf32 {
  using Value = float;
  static constexpr int kPerRegister = 1;
  static Value element(uint32_t bits, int) { return tf32_to_float(bits); }
};
struct S8 {
  using Value = uint32_t;  // sums wrap around
  static constexpr int kPerRegister = 4;
  static Value element(uint32_t bits, int i) { return static_cast<Value>(static_cast<int8_t>(bits >> 8 * i)); }
};

struct E4m3 {
  using Value = float;
  static constexpr int kPerRegister = 4;
  static Value element(uint32_t bits, int i) { return e4m3_to_float(static_cast<uint8_t>(bits >> 8 * i)); }
};
struct E5m2 {
  using Value = float;
  static constexpr int kPerRegister = 4;
  static Value element(uint32_t bits, int i) { return e5m2_to_float(static_cast<uint8_t>(bits >> 8 * i)); }
};

// How a lane's four accumulators lie in registers.
template <class Value>
struct OnePerRegister {
  static Value get(const void* regs, int i) { return static_cast<const Value*>(regs)[i]; }
  static void set(void* regs, int i, Value value) { static_cast<Value*>(regs)[i] = value; }
};
struct F16Pairs {
  static float get(const void* regs, int i) { return F16::element(static_cast<const uint32_t*>(regs)[i / 2], i % 2); }
  static void set(void* regs, int i, float value) {
    uint32_t& pair = static_cast<uint32_t*>(regs)[i / 2];
    const int shift = 16 * (i % 2);
    pair = (pair & ~(0xffffu << shift)) | static_cast<uint32_t>(float_to_f16(value)) << shift;
  }
};

template <class FormatA, class FormatB, class Accumulators>
struct Operands {
  using Value = typename FormatA::Value;
  static constexpr int kElems = FormatA::kPerRegister, kHalf = 4 * kElems, K = 2 * kHalf;
  static_assert(kElems == FormatB::kPerRegister);
  Value a[kM][K], b[K][kN], d[kM][kN];

  void load(int lane, const void* d_regs, const uint32_t* a_regs, const uint32_t* b_regs) {
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < kElems; ++i) {
        const int k = half * kHalf + t * kElems + i;
        a[g][k] = FormatA::element(a_regs[2 * half], i);
        a[g + 8][k] = FormatA::element(a_regs[2 * half + 1], i);
        b[k][g] = FormatB::element(b_regs[half], i);
      }
    }
    for (int i = 0; i < 4; ++i) d[g + i / 2 * 8][2 * t + i % 2] = Accumulators::get(d_regs, i);
  }

  void multiply() {
    for (int row = 0; row < kM; ++row) {
      Value sum[kN];
      for (int col = 0; col < kN; ++col) sum[col] = d[row][col];
      for (int k = 0; k < K; ++k) {
        for (int col = 0; col < kN; ++col) sum[col] += a[row][k] * b[k][col];
      }
      for (int col = 0; col < kN; ++col) d[row][col] = sum[col];
    }
  }

  void store(int lane, void* d_regs) const {
    for (int i = 0; i < 4; ++i) Accumulators::set(d_regs, i, d[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2]);
  }
};

struct MmaLane {
  void* d;
  const uint32_t *a, *b;
};

template <class FormatA, class FormatB = FormatA, class Accumulators = OnePerRegister<typename FormatA::Value>>
void mma(const char* op, Pc where, MmaLane mine) {
  warp_together(op, where, mine, [&](auto&& lane) {
    Operands<FormatA, FormatB, Accumulators> operands;
    for (int i = 0; i < 32; ++i) operands.load(i, lane(i).d, lane(i).a, lane(i).b);
    operands.multiply();
    for (int i = 0; i < 32; ++i) operands.store(i, lane(i).d);
  });
}

}  // namespace

void mma_f16(float* d, const uint32_t* a, const uint32_t* b) { mma<F16>("mma.m16n8k16.f16", EMU_CALLER, {d, a, b}); }
void mma_bf16(float* d, const uint32_t* a, const uint32_t* b) { mma<Bf16>("mma.m16n8k16.bf16", EMU_CALLER, {d, a, b}); }
void mma_tf32(float* d, const uint32_t* a, const uint32_t* b) { mma<Tf32>("mma.m16n8k8.tf32", EMU_CALLER, {d, a, b}); }
void mma_s8(int32_t* d, const uint32_t* a, const uint32_t* b) { mma<S8>("mma.m16n8k32.s8", EMU_CALLER, {d, a, b}); }

void mma_f16_f16(uint32_t* d, const uint32_t* a, const uint32_t* b) {
  mma<F16, F16, F16Pairs>("mma.m16n8k16.f16.f16", EMU_CALLER, {d, a, b});
}

void mma_fp8(bool e5m2_a, bool e5m2_b, float* d, const uint32_t* a, const uint32_t* b) {
  const Pc where = EMU_CALLER;
  if (e5m2_a) {
    if (e5m2_b) return mma<E5m2, E5m2>("mma.m16n8k32.e5m2.e5m2", where, {d, a, b});
    return mma<E5m2, E4m3>("mma.m16n8k32.e5m2.e4m3", where, {d, a, b});
  }
  if (e5m2_b) return mma<E4m3, E5m2>("mma.m16n8k32.e4m3.e5m2", where, {d, a, b});
  mma<E4m3, E4m3>("mma.m16n8k32.e4m3.e4m3", where, {d, a, b});
}

}  // namespace emu
