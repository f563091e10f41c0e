// What select.cc asks about kernels of quantised rhs.
#pragma once

#include <string_view>

#include "gemm.h"

namespace jaxgemm {

KSplit mixed_k_split(const KernelInfo& info, const Problem& p);
double estimated_mixed_cost(const Kernel& kernel, const Problem& p);
// How many clusters of `splits` CTAs that share K run at the same time on so many multiprocessors; 1 at least.
int64_t mixed_clusters(const KernelInfo& info, int64_t splits, int64_t sms);
const Kernel* select_mixed(const Problem& p, std::string_view family);

}  // namespace jaxgemm
