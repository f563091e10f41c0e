// What wgmma kernels multiply, and how, for each pair of operand dtypes.
#pragma once

#include <array>
#include <string>
#include <type_traits>

#include "epilogue/recompute.cuh"
#include "gemm.h"
#include "ptx/wgmma.cuh"
#include "tile/mma_family.cuh"
#include "tile/swizzled_rows.cuh"

namespace jaxgemm::sm90 {

template <DType kDType>
struct WgmmaElement;
template <>
struct WgmmaElement<DType::kF16> : std::type_identity<__half> {};
template <>
struct WgmmaElement<DType::kBF16> : std::type_identity<__nv_bfloat16> {};
template <>
struct WgmmaElement<DType::kF32> : std::type_identity<float> {};
template <>
struct WgmmaElement<DType::kS8> : std::type_identity<int8_t> {};
template <>
struct WgmmaElement<DType::kF8E4M3FN> : std::type_identity<ptx::E4m3> {};
template <>
struct WgmmaElement<DType::kF8E5M2> : std::type_identity<ptx::E5m2> {};

// An Op is a struct with
//   kLhsDType, kRhsDType   of the operands; Lhs, Rhs are their types for wgmma
//   Sum                    type of the accumulators
//   kPlanes                matrices that stand for each operand, side by side along K (tile/k_major_copy.h)
//   kKTilesApart           of how many k-tiles the tensor cores add up the products; sums of more are added up outside.
//                          0: of all
//   kRecomputes            whether some sums are to be computed again in float32 (epilogue/recompute.cuh)
//
// Of 8-bit floating-point numbers tensor cores add up products with some 13 bits of fraction, and truncate: over all of
// K the errors add up (DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.3.2), unless they are
// added up APART.
template <DType LHS, DType RHS, bool APART = false>
struct WgmmaOp {
  static constexpr DType kLhsDType = LHS, kRhsDType = RHS;
  using Lhs = typename WgmmaElement<LHS>::type;
  using Rhs = typename WgmmaElement<RHS>::type;
  using Sum = ptx::WgmmaSum<Lhs>;
  static constexpr int kPlanes = 1;
  static constexpr int kKTilesApart = APART ? 4 : 0;
  static constexpr bool kRecomputes = false;
  static_assert(sizeof(Lhs) == sizeof(Rhs));

  // Whether wgmma takes operands that are contiguous along M or N.
  static constexpr bool kAnyMajor = sizeof(Lhs) == 2;
};

// float32 as TF32, to which TMA rounds it on the way into shared memory: wgmma would truncate.
using WgmmaTf32 = WgmmaOp<DType::kF32, DType::kF32>;

// float32 as 3xTF32, see MmaTf32x3: but x = big + small is what the copies into the workspace hold, both rounded to
// nearest, so that a product loses at most 3 * 2^-24 of itself.
struct WgmmaTf32x3 : WgmmaTf32 {
  static constexpr int kPlanes = 2, kKTilesApart = 1;
  static constexpr bool kRecomputes = true;
};

inline int planes(const Problem& p) {
  return p.lhs_dtype == DType::kF32 && p.precision == Precision::kHighest ? WgmmaTf32x3::kPlanes : WgmmaTf32::kPlanes;
}

// By the size of an operand's elements. FP8: all pairs of the 8-bit floating-point formats, too.
template <int kElementBytes, bool FP8>
constexpr auto dtypes_of() {
  if constexpr (!FP8) {
    return kMmaDTypes<kElementBytes>;
  } else {
    std::array<DTypes, 13> all = {kMmaDTypes<1>[0]};
    int i = 1;
    for (DType lhs : {DType::kF8E4M3FN, DType::kF8E5M2}) {
      for (DType rhs : {DType::kF8E4M3FN, DType::kF8E5M2}) {
        for (DType out : {DType::kBF16, DType::kF16, DType::kF32}) all[i++] = {lhs, rhs, out};
      }
    }
    return all;
  }
}

// Calls f.template operator()<Op>() for the problem's dtypes and precision, of the Ops that Config::kDTypes asks for.
template <class Config, class F>
std::string dispatch_wgmma_op(const Problem& p, F&& f) {
  std::string error = std::string(Config::kFamily) + ": no Op for " + describe(p);
  const auto try_op = [&]<class Op>(std::type_identity<Op>) {
    constexpr bool kWanted = [] {
      for (const DTypes& dtypes : Config::kDTypes) {
        if (dtypes.lhs == Op::kLhsDType && dtypes.rhs == Op::kRhsDType) return true;
      }
      return false;
    }();
    if constexpr (kWanted) {
      if (p.lhs_dtype == Op::kLhsDType && p.rhs_dtype == Op::kRhsDType && planes(p) == Op::kPlanes) {
        error = f.template operator()<Op>();
      }
    }
  };
  using enum DType;
  try_op(std::type_identity<WgmmaOp<kF16, kF16>>());
  try_op(std::type_identity<WgmmaOp<kBF16, kBF16>>());
  try_op(std::type_identity<WgmmaOp<kS8, kS8>>());
  try_op(std::type_identity<WgmmaOp<kF8E4M3FN, kF8E4M3FN, Config::kHighest>>());
  try_op(std::type_identity<WgmmaOp<kF8E4M3FN, kF8E5M2, Config::kHighest>>());
  try_op(std::type_identity<WgmmaOp<kF8E5M2, kF8E4M3FN, Config::kHighest>>());
  try_op(std::type_identity<WgmmaOp<kF8E5M2, kF8E5M2, Config::kHighest>>());
  if constexpr (Config::kCtaTile.k * sizeof(float) == kRowBytes) {
    try_op(std::type_identity<WgmmaTf32>());
    if constexpr (Config::kHighest) try_op(std::type_identity<WgmmaTf32x3>());
  }
  return error;
}

}  // namespace jaxgemm::sm90
