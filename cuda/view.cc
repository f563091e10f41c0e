#include "view.h"

#include <vector>

namespace jaxgemm {
namespace {

std::string list(std::span<const int64_t> values) {
  std::string text = "[";
  for (int64_t value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

// Sizes whose product passes 2^62 cannot be a buffer, and would make the index arithmetic wrap.
constexpr int64_t kMaxElements = int64_t{1} << 62;

bool multiply(int64_t& product, int64_t factor) {
  if (factor < 0 || (factor > 0 && product > kMaxElements / factor)) return false;
  product *= factor;
  return true;
}

// One index formed by `group`: its extent and the stride of a step by one.
struct Run {
  int64_t extent = 1, stride = 0;
};

std::string collapse(std::span<const int64_t> sizes, std::span<const int64_t> strides, std::span<const int64_t> group,
                     const char* role, Run& run) {
  run = {};
  for (auto it = group.rbegin(); it != group.rend(); ++it) {
    const int64_t size = sizes[*it];
    if (size == 1) continue;  // its stride never matters
    if (run.extent == 1) {
      run.stride = strides[*it];
    } else if (size != 0 && run.extent != 0 && strides[*it] != run.stride * run.extent) {
      return "dimensions " + list(group) + " of shape " + list(sizes) + " do not form one " + role + " index in memory";
    }
    if (!multiply(run.extent, size)) return "shape " + list(sizes) + " has too many elements";
  }
  return {};
}

}  // namespace

std::string make_view(std::span<const int64_t> sizes, const OperandDims& dims, MatrixView& view, int64_t& batch) {
  const int64_t rank = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> scratch(3 * sizes.size(), 0);  // one allocation, as every call of the handler waits for it
  const std::span strides(scratch.data(), sizes.size());
  const std::span ordered(strides.data() + strides.size(), strides.size());
  const std::span used(ordered.data() + ordered.size(), ordered.size());
  for (int64_t d : dims.order) {
    if (d < 0 || d >= rank || ordered[d]++)
      return "order " + list(dims.order) + " is no permutation of " + std::to_string(rank) + " dimensions";
  }
  if (static_cast<int64_t>(dims.order.size()) != rank)
    return "order " + list(dims.order) + " does not list " + std::to_string(rank) + " dimensions";
  for (const auto* group : {&dims.batch, &dims.rows, &dims.cols}) {
    for (int64_t d : *group) {
      if (d < 0 || d >= rank || used[d]++)
        return "dimension " + std::to_string(d) + " is out of range or used twice, the shape is " + list(sizes);
    }
  }
  for (int64_t d = 0; d < rank; ++d) {
    if (!used[d]) return "dimension " + std::to_string(d) + " of shape " + list(sizes) + " has no role";
  }
  int64_t elements = 1;
  for (int64_t i = rank; i-- > 0;) {
    strides[dims.order[i]] = elements;
    if (!multiply(elements, sizes[dims.order[i]])) return "shape " + list(sizes) + " has too many elements";
  }
  Run batches, rows, cols;
  std::string error = collapse(sizes, strides, dims.batch, "batch", batches);
  if (error.empty()) error = collapse(sizes, strides, dims.rows, "row", rows);
  if (error.empty()) error = collapse(sizes, strides, dims.cols, "column", cols);
  if (!error.empty()) return error;
  // Of the two matrix dimensions one must be dense. A dimension of one element may count as dense, but the other's
  // stride is then the real one: it is preferred as ld only if it isn't 1 itself.
  const bool rows_dense = rows.extent <= 1 || rows.stride == 1;
  const bool cols_dense = cols.extent <= 1 || cols.stride == 1;
  if (elements != 0 && !rows_dense && !cols_dense)
    return "neither rows nor columns of shape " + list(sizes) + " are contiguous";
  view.rows = rows.extent;
  view.cols = cols.extent;
  view.transposed = !cols_dense || (rows_dense && rows.extent > 1 && cols.extent <= 1);
  const Run& outer = view.transposed ? cols : rows;
  const Run& inner = view.transposed ? rows : cols;
  view.ld = outer.extent > 1 ? outer.stride : inner.extent;
  view.batch_stride = batches.extent > 1 ? batches.stride : 0;
  batch = batches.extent;
  return {};
}

std::string make_problem(std::span<const int64_t> lhs_sizes, const OperandDims& lhs_dims,
                         std::span<const int64_t> rhs_sizes, const OperandDims& rhs_dims,
                         std::span<const int64_t> out_sizes, const OperandDims& out_dims, Problem& p) {
  int64_t lhs_batch = 0, rhs_batch = 0;
  if (std::string error = make_view(lhs_sizes, lhs_dims, p.lhs, lhs_batch); !error.empty()) return "lhs: " + error;
  if (std::string error = make_view(rhs_sizes, rhs_dims, p.rhs, rhs_batch); !error.empty()) return "rhs: " + error;
  if (std::string error = make_view(out_sizes, out_dims, p.out, p.batch); !error.empty()) return "out: " + error;
  p.M = p.out.rows;
  p.N = p.out.cols;
  p.K = p.lhs.cols;
  if (p.lhs.rows != p.M || p.rhs.cols != p.N || p.rhs.rows != p.K) {
    return "lhs " + std::to_string(p.lhs.rows) + "x" + std::to_string(p.lhs.cols) + " times rhs " +
           std::to_string(p.rhs.rows) + "x" + std::to_string(p.rhs.cols) + " does not give out " + std::to_string(p.M) +
           "x" + std::to_string(p.N);
  }
  // An operand without batch dimensions is shared by all batches.
  if ((lhs_batch != p.batch && !lhs_dims.batch.empty()) || (rhs_batch != p.batch && !rhs_dims.batch.empty())) {
    return "batches of lhs " + std::to_string(lhs_batch) + " and rhs " + std::to_string(rhs_batch) +
           " do not fit out " + std::to_string(p.batch);
  }
  if (p.out.transposed && !p.empty()) {
    if (p.N > 1) return "out is not row-major";
    p.out.transposed = false;  // a single column: its elements lie `ld` = 1 apart, row-major with one column
    p.out.ld = 1;
  }
  return {};
}

}  // namespace jaxgemm
