// How an operand comes to lie where TMA can read it for wgmma: where it is, or in a copy in the workspace, which keeps
// the order of its elements if it only needs rows that begin at multiples of 16 bytes.
#pragma once

#include <cstdint>
#include <string>

#include "alignment.h"
#include "gemm.h"
#include "k_major_copy.h"
#include "pad_copy.h"

namespace jaxgemm {

class TmaOperand {
 public:
  // `planes`, `k_multiple`: see KMajor. `any_major`: whether K need not be contiguous.
  TmaOperand(const Problem& p, bool lhs, bool any_major, int planes, int64_t k_multiple)
      : dtype_(lhs ? p.lhs_dtype : p.rhs_dtype),
        batch_(p.batch),
        k_major_(KMajor::of(p, lhs, planes, k_multiple)),
        view_(k_major_.from) {
    if (planes > 1 || (!any_major && k_major_.transposes)) {
      copy_ = Copy::kKMajor;
      view_ = k_major_.view();
    } else if (!begins_at_vectors(view_, size_bytes(dtype_))) {
      copy_ = Copy::kPadded;
      view_ = vectors_view(view_, dtype_);
    }
  }

  bool copied() const { return copy_ != Copy::kNone; }
  Copies copies() const { return {int{copied()}, workspace_bytes()}; }
  int64_t workspace_bytes() const { return !copied() ? 0 : padded_bytes(view_, batch_, size_bytes(dtype_)); }

  // Enqueues the copy, if one is needed, of what lies at `data`, and has `data` and `workspace` point to it and past
  // it. Returns "" or what went wrong.
  std::string prepare(const void*& data, char*& workspace, void* stream) const {
    if (!copied()) return {};
    std::string error = copy_ == Copy::kKMajor
                            ? k_major_copy(workspace, data, k_major_, dtype_, stream)
                            : pad_copy(workspace, data, k_major_.from, view_, batch_, dtype_, stream);
    data = workspace;
    workspace += workspace_bytes();
    return error;
  }

  // Of what prepare() leaves.
  const MatrixView& view() const { return view_; }

 private:
  enum class Copy { kNone, kPadded, kKMajor };

  DType dtype_;
  int64_t batch_;
  Copy copy_ = Copy::kNone;
  KMajor k_major_;
  MatrixView view_;
};

}  // namespace jaxgemm
