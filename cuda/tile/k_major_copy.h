// Copies an operand into the workspace with K contiguous, for wgmma, which reads elements of other sizes than 16 bits
// from shared memory only so. For 3xTF32 it becomes two matrices side by side.
#pragma once

#include <cstdint>
#include <string>

#include "gemm.h"

namespace jaxgemm {

// Rows of M or N, along each of which lie the `planes` parts of an operand, each K long and filled up with zeros to
// padded_k: the operand's elements; or (planes = 2) float32 rounded to TF32, and what that left of it.
struct KMajor {
  int64_t mn = 0, k = 0, padded_k = 0;
  int64_t copies = 1;  // matrices
  int planes = 1;
  bool lhs = false, transposes = false;  // whether K is not contiguous in the operand
  MatrixView from;

  // `k_multiple`: elements that padded_k is a multiple of, in whole vectors of 16 bytes.
  static KMajor of(const Problem& p, bool lhs, int planes, int64_t k_multiple) {
    const MatrixView& view = lhs ? p.lhs : p.rhs;
    return {.mn = lhs ? p.M : p.N,
            .k = p.K,
            .padded_k = (p.K + k_multiple - 1) / k_multiple * k_multiple,
            .copies = view.batch_stride == 0 ? 1 : p.batch,
            .planes = planes,
            .lhs = lhs,
            .transposes = view.transposed == lhs,
            .from = view};
  }

  // The copy, as an operand whose K is `planes` times as long.
  MatrixView view() const {
    const int64_t row = planes * padded_k;
    return {.rows = lhs ? mn : row,
            .cols = lhs ? row : mn,
            .ld = row,
            .batch_stride = from.batch_stride == 0 ? 0 : mn * row,
            .transposed = !lhs};
  }

  int64_t elements() const { return copies * mn * planes * padded_k; }
};

// Enqueues the copy. Returns "" or what went wrong.
std::string k_major_copy(void* to, const void* from, const KMajor& shape, DType dtype, void* stream);

}  // namespace jaxgemm
