// Emulates cuda/ptx/wgmma.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "core/emu.h"
#include "ptx/wgmma_types.cuh"

namespace emu {
using jaxgemm::ptx::Major;

struct WgmmaShape {
  int n;
  bool bf16;
  Major major_a, major_b;
  bool operator==(const WgmmaShape&) const = default;
};

EMU_NOINLINE void wgmma_fence();
EMU_NOINLINE void wgmma_commit();
EMU_NOINLINE void wgmma_wait(size_t pending);
// A lies at descriptor_a, or, if `a` is not nullptr, in registers.
EMU_NOINLINE void wgmma(WgmmaShape shape, float* d, const uint32_t* a, uint64_t descriptor_a, uint64_t descriptor_b,
                        int scale_d);
}  // namespace emu

namespace jaxgemm::ptx {

EMU_INLINE void wgmma_fence() { emu::wgmma_fence(); }
EMU_INLINE void wgmma_commit() { emu::wgmma_commit(); }

template <int kPending>
EMU_INLINE void wgmma_wait() {
  emu::wgmma_wait(kPending);
}

template <int kRegisters>
EMU_INLINE void pin_registers(float (&)[kRegisters]) {}

template <class T, int kN, Major kMajorA, Major kMajorB>
EMU_INLINE void wgmma(float (&d)[kN / 2], uint64_t descriptor_a, uint64_t descriptor_b, int scale_d) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  static_assert(kIsWgmmaN<kN>);
  emu::wgmma({kN, std::is_same_v<T, __nv_bfloat16>, kMajorA, kMajorB}, d, nullptr, descriptor_a, descriptor_b, scale_d);
}

template <class T, int kN, Major kMajorB>
EMU_INLINE void wgmma(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t descriptor_b, int scale_d) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  static_assert(kIsWgmmaN<kN>);
  emu::wgmma({kN, std::is_same_v<T, __nv_bfloat16>, Major::kK, kMajorB}, d, a, 0, descriptor_b, scale_d);
}

}  // namespace jaxgemm::ptx
