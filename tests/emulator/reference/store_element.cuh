// The way out of reference kernels that write one element after another, out of line: the activations, inlined for
// every element, would take the compiler minutes.
#pragma once

#include "epilogue/epilogue.cuh"

namespace jaxgemm {
namespace {

__device__ __noinline__ void store_element(Epilogue epilogue, int64_t batch, int64_t row, int64_t col, float sum) {
  epilogue.store(batch, row, col, sum);
}

}  // namespace
}  // namespace jaxgemm
