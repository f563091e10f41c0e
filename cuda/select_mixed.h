// What select.cc asks about kernels of quantised rhs.
#pragma once

#include <string_view>

#include "gemm.h"

namespace jaxgemm {

KSplit mixed_k_split(const KernelInfo& info, const Problem& p);
double estimated_mixed_cost(const Kernel& kernel, const Problem& p);
const Kernel* select_mixed(const Problem& p, std::string_view family);

}  // namespace jaxgemm
