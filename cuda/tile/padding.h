// Which operands a kernel copies into the workspace first, with their rows padded (pad_copy.h): those that it can't
// read in whole vectors where they lie and that more than one CTA reads.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "pad_copy.h"

namespace jaxgemm {

class Padding {
 public:
  // `fits(view)`: whether the kernel reads an operand well where it lies, going by its shape.
  template <class Fits>
  Padding(const Problem& p, const Tile& cta_tile, Fits&& fits)
      : lhs_(!fits(p.lhs) && p.N > cta_tile.n), rhs_(!fits(p.rhs) && p.M > cta_tile.m) {}

  int64_t workspace_bytes(const Problem& p) const {
    const auto bytes = [&](const MatrixView& view) {
      return padded_bytes(padded_view(view, multiple(p)), p.batch, size_bytes(p.lhs_dtype));
    };
    return (lhs_ ? bytes(p.lhs) : 0) + (rhs_ ? bytes(p.rhs) : 0);
  }

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

  bool lhs_, rhs_;
};

}  // namespace jaxgemm
