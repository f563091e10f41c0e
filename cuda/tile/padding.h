// Which operands a kernel copies into the workspace first, with their rows padded (pad_copy.h): of those that it can't
// read in whole vectors where they lie, what more than one CTA reads.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "pad_copy.h"

// In multiply-adds. The emulator, which computes nothing so large, sets it lower (tests/emulator/CMakeLists.txt).
#ifndef JAXGEMM_COPIES_PAY_FROM
#define JAXGEMM_COPIES_PAY_FROM (1 << 28)
#endif

namespace jaxgemm {

// Whether a problem has so many multiply-adds that whole vectors gain more than the launch of a copy takes, where
// narrower loads wait for nothing else: on an H100 batch x M x N x K = 16 x 197 x 256 x 197 took 8.5 us without copies
// and 10.1 with them, 8 x 577 x 128 x 577 17.9 and 14.8 (docs/tried.md).
inline bool copies_pay(const Problem& p) {
  constexpr double kFmas = JAXGEMM_COPIES_PAY_FROM;
  return static_cast<double>(p.batch * p.M) * static_cast<double>(p.N) * static_cast<double>(p.K) >= kFmas;
}

class Padding {
 public:
  Padding() = default;  // copies nothing

  // `fits(view)`: whether the kernel reads an operand well where it lies, going by its shape.
  template <class Fits>
  Padding(const Problem& p, const Tile& cta_tile, Fits&& fits)
      : lhs_(p.may_copy && !fits(p.lhs) && p.N > cta_tile.n), rhs_(p.may_copy && !fits(p.rhs) && p.M > cta_tile.m) {}

  int64_t workspace_bytes(const Problem& p) const {
    const auto bytes = [&](const MatrixView& view) {
      return padded_bytes(padded_view(view, multiple(p)), p.batch, size_bytes(p.lhs_dtype));
    };
    return (lhs_ ? bytes(p.lhs) : 0) + (rhs_ ? bytes(p.rhs) : 0);
  }

  int operands() const { return int{lhs_} + int{rhs_}; }  // that are copied

  // Enqueues the copies, replaces the operands by them and moves `workspace` past them. Returns "" or what went wrong.
  std::string apply(PaddableOperand& lhs, PaddableOperand& rhs, char*& workspace, const GemmArgs& args) const {
    const Problem& p = args.problem;
    for (const auto& [operand, wanted] : {std::pair{&lhs, lhs_}, std::pair{&rhs, rhs_}}) {
      if (!wanted) continue;
      std::string error = operand->pad(workspace, multiple(p), p, p.lhs_dtype, args.stream);
      if (!error.empty()) return error;
    }
    return {};
  }

 private:
  static int64_t multiple(const Problem& p) { return 16 / size_bytes(p.lhs_dtype); }  // elements of a vector

  bool lhs_ = false, rhs_ = false;
};

}  // namespace jaxgemm
