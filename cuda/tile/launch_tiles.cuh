// The launch that the rungs without a workspace share: one CTA for each tile of out.
#pragma once

#include "epilogue/epilogue.cuh"
#include "global_matrix.cuh"
#include "launch.cuh"
#include "scheduler.cuh"

namespace jaxgemm {

// Enqueues kernel(g_lhs, g_rhs, epilogue, grid, M, N, K), where the kernel for a layout is what
// kernel_of.template operator()<kLhsTransposed, kRhsTransposed>() returns.
template <class Config, class T, class KernelOf>
std::string launch_tiles(const GemmArgs& args, KernelOf&& kernel_of) {
  const Problem& p = args.problem;
  const TileGrid grid(Config::kCtaTile, p.M, p.N);
  return dispatch_layout(p.layout(), [&]<bool kLhsTransposed, bool kRhsTransposed>() {
    return launch_kernel(kernel_of.template operator()<kLhsTransposed, kRhsTransposed>(), grid.ctas(p.batch),
                         Config::kThreads, describe<Config>().smem_bytes, args.stream,
                         GlobalMatrix<T, kLhsTransposed>(args.lhs, p.lhs),
                         GlobalMatrix<T, kRhsTransposed>(args.rhs, p.rhs), Epilogue(args), grid, p.M, p.N, p.K);
  });
}

}  // namespace jaxgemm
