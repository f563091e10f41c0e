// Emulates cuda/ptx/wgmma.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "core/emu.h"
#include "ptx/wgmma_product.h"
#include "ptx/wgmma_types.cuh"

namespace emu {
using jaxgemm::ptx::Major;

template <class A>
inline constexpr WgmmaElement kWgmmaElement = std::is_same_v<A, __half>               ? WgmmaElement::kF16
                                              : std::is_same_v<A, __nv_bfloat16>      ? WgmmaElement::kBf16
                                              : std::is_same_v<A, float>              ? WgmmaElement::kTf32
                                              : std::is_same_v<A, int8_t>             ? WgmmaElement::kS8
                                              : std::is_same_v<A, jaxgemm::ptx::E4m3> ? WgmmaElement::kE4m3
                                                                                      : WgmmaElement::kE5m2;

struct WgmmaShape {
  int n;
  WgmmaElement a, b;
  Major major_a, major_b;
  bool operator==(const WgmmaShape&) const = default;
};

EMU_NOINLINE void wgmma_fence();
EMU_NOINLINE void wgmma_commit();
EMU_NOINLINE void wgmma_wait(size_t pending);
// A lies at descriptor_a, or, if `a` is not nullptr, in registers. The accumulators are float32 or int32.
EMU_NOINLINE void wgmma(WgmmaShape shape, void* d, const uint32_t* a, uint64_t descriptor_a, uint64_t descriptor_b,
                        int scale_d);
}  // namespace emu

namespace jaxgemm::ptx {

EMU_INLINE void wgmma_fence() { emu::wgmma_fence(); }
EMU_INLINE void wgmma_commit() { emu::wgmma_commit(); }

template <int kPending>
EMU_INLINE void wgmma_wait() {
  emu::wgmma_wait(kPending);
}

template <class A, class B, int kN, Major kMajorA, Major kMajorB>
EMU_INLINE void wgmma(WgmmaSum<A> (&d)[kN / 2], uint64_t descriptor_a, uint64_t descriptor_b, int scale_d) {
  static_assert(kIsWgmma<A, B, kN, kMajorA, kMajorB>);
  emu::wgmma({kN, emu::kWgmmaElement<A>, emu::kWgmmaElement<B>, kMajorA, kMajorB}, d, nullptr, descriptor_a,
             descriptor_b, scale_d);
}

template <class A, class B, int kN, Major kMajorB>
EMU_INLINE void wgmma(WgmmaSum<A> (&d)[kN / 2], const uint32_t (&a)[4], uint64_t descriptor_b, int scale_d) {
  static_assert(kIsWgmma<A, B, kN, kMajorB>);
  emu::wgmma({kN, emu::kWgmmaElement<A>, emu::kWgmmaElement<B>, Major::kK, kMajorB}, d, a, 0, descriptor_b, scale_d);
}

}  // namespace jaxgemm::ptx
