// From a buffer's dimensions to the batch of matrices that a kernel sees. Used by the FFI handler on what XLA hands it
// and by Python at trace time, so that both judge the same problem.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "gemm.h"

namespace jaxgemm {

// The role of each dimension of one operand. `order` lists all dimensions from the slowest to the fastest in memory;
// batch, rows and cols list the dimensions that together form that index, slowest first. A dimension that is in none
// of the three is an error.
struct OperandDims {
  std::span<const int64_t> order, batch, rows, cols;
};

// Fills `view` and `batch` (the operand's own number of matrices) or returns what is wrong.
std::string make_view(std::span<const int64_t> sizes, const OperandDims& dims, MatrixView& view, int64_t& batch);

// Fills the sizes and views of `problem` or returns what is wrong; dtypes and the rest stay as they are.
std::string make_problem(std::span<const int64_t> lhs_sizes, const OperandDims& lhs_dims,
                         std::span<const int64_t> rhs_sizes, const OperandDims& rhs_dims,
                         std::span<const int64_t> out_sizes, const OperandDims& out_dims, Problem& problem);

}  // namespace jaxgemm
