// Emulates cuda/ptx/wmma.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "core/emu.h"
#include "ptx/wmma_types.cuh"

namespace emu {

// What a fragment's type says.
struct WmmaFragment {
  bool is_a, bf16, col_major;
};
EMU_NOINLINE void wmma_load(WmmaFragment type, uint32_t* regs, const void* tile, int ld, bool shared);
EMU_NOINLINE void wmma_mma(bool bf16, bool a_col_major, bool b_col_major, float* d, const uint32_t* a,
                           const uint32_t* b);
EMU_NOINLINE void wmma_store(float* tile, const float* d, int ld);

}  // namespace emu

namespace jaxgemm::wmma {

template <class F>
inline constexpr emu::WmmaFragment kTypeOf = {F::kOperand == Operand::kA,
                                              std::is_same_v<typename F::Element, __nv_bfloat16>, F::kColMajor};

template <class F>
EMU_INLINE void load_shared(F& fragment, const typename F::Element* s_tile, int ld) {
  emu::wmma_load(kTypeOf<F>, fragment.regs, s_tile, ld, true);
}

template <class F>
EMU_INLINE void load_global(F& fragment, const typename F::Element* g_tile, int ld) {
  emu::wmma_load(kTypeOf<F>, fragment.regs, g_tile, ld, false);
}

template <class T, bool kAColMajor, bool kBColMajor>
EMU_INLINE void mma(Accumulator& accumulator, const FragmentA<T, kAColMajor>& fragment_a,
                    const FragmentB<T, kBColMajor>& fragment_b) {
  emu::wmma_mma(std::is_same_v<T, __nv_bfloat16>, kAColMajor, kBColMajor, accumulator.regs, fragment_a.regs,
                fragment_b.regs);
}

EMU_INLINE void store_shared(float* s_tile, const Accumulator& accumulator, int ld) {
  emu::wmma_store(s_tile, accumulator.regs, ld);
}

}  // namespace jaxgemm::wmma
