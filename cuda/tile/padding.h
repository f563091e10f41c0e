// Which operands a kernel copies into the workspace first, with their rows padded (pad_copy.h): of those that it can't
// read in whole vectors where they lie, what more than one CTA reads.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "alignment.h"
#include "pad_copy.h"

// In multiply-adds. The emulator, which computes nothing so large, sets it lower (tests/emulator/CMakeLists.txt).
#ifndef JAXGEMM_COPIES_PAY_FROM
#define JAXGEMM_COPIES_PAY_FROM (1 << 28)
#endif

namespace jaxgemm {

// Whether a problem has so many multiply-adds that whole vectors gain more than the launch of a copy takes, where a
// kernel can do without (tile/shifted_tile.cuh): on an H200 257 x 511 x 1023 TN took 11.5 us without copies and 15.8
// with them, 512 x 1024 x 1001 NN 15.0 and 11.7 (docs/tried.md).
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

  int64_t workspace_bytes(const Problem& p) const { return copies(p).bytes; }

  Copies copies(const Problem& p) const {
    Copies all;
    for (const auto& [view, wanted] : {std::pair{&p.lhs, lhs_}, std::pair{&p.rhs, rhs_}}) {
      if (wanted) all += {1, padded_bytes(vectors_view(*view, p.lhs_dtype), p.batch, size_bytes(p.lhs_dtype))};
    }
    return all;
  }

  bool lhs() const { return lhs_; }  // whether it is copied
  bool rhs() const { return rhs_; }

  // Enqueues the copies, replaces the operands by them and moves `workspace` past them. Returns "" or what went wrong.
  std::string apply(PaddableOperand& lhs, PaddableOperand& rhs, char*& workspace, const GemmArgs& args) const {
    const Problem& p = args.problem;
    for (const auto& [operand, wanted] : {std::pair{&lhs, lhs_}, std::pair{&rhs, rhs_}}) {
      if (!wanted) continue;
      const MatrixView copy = vectors_view(operand->view, p.lhs_dtype);
      std::string error = operand->pad(workspace, copy, p, p.lhs_dtype, args.stream);
      if (!error.empty()) return error;
    }
    return {};
  }

 private:
  bool lhs_ = false, rhs_ = false;
};

// Of kernels that read operands in whole vectors: those that allow none, going by their shapes.
inline Padding vector_padding(const Problem& p, const Tile& cta_tile) {
  return {p, cta_tile, [&](const MatrixView& view) { return begins_at_vectors(view, size_bytes(p.lhs_dtype)); }};
}

// Of kernels that ask for operands made of them.
inline Padding whole_vector_padding(const Problem& p, const Tile& cta_tile) {
  return {p, cta_tile, [&](const MatrixView& view) { return made_of_vectors(view, size_bytes(p.lhs_dtype)); }};
}

// Of kernels that can do without.
inline Padding vector_padding_that_pays(const Problem& p, const Tile& cta_tile) {
  return copies_pay(p) ? vector_padding(p, cta_tile) : Padding();
}

}  // namespace jaxgemm
