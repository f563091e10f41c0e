// wmma_naive: one warp computes one 16 x 16 tile of out on the tensor cores, with both operands read straight from
// global memory.
//
// What is new against the SGEMM rungs: the multiply-adds. One instruction of a warp does 16 x 16 x 16 of them in
// float32 from float16 or bfloat16 operands, where a CUDA core does one per thread; the operands must arrive as
// fragments spread over the lanes. The bound is now what the warps can fetch: every tile fetches all the elements it
// needs by itself, a kilobyte for 4096 multiply-adds, and waits for them with nothing else to do.
//
// wmma reads whole, aligned tiles. Operands that are not made of them are first copied into the workspace, padded with
// zeros to multiples of 16. An operand of the right shape at a misaligned address (which is not known when the
// workspace is sized) goes through shared memory instead, tile by tile.
//
// Source: the padded WMMA kernel "wmmaKernel"/"wmma_matmul" (one warp per tile, padding hidden from the user).
#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "ptx/shared_storage.cuh"
#include "ptx/wmma.cuh"
#include "tile/global_matrix.cuh"
#include "tile/pad_copy.h"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

constexpr int kTile = wmma::kTile;

struct Config16x16 {
  static constexpr std::string_view kFamily = "wmma_naive";
  static constexpr DTypes kDTypes[] = {{DType::kF16, DType::kF16, DType::kF16},
                                       {DType::kF16, DType::kF16, DType::kF32},
                                       {DType::kBF16, DType::kBF16, DType::kBF16},
                                       {DType::kBF16, DType::kBF16, DType::kF32}};
  static constexpr Tile kCtaTile = {kTile, kTile, kTile}, kWarpTile = kCtaTile;
  static constexpr int kStages = 1, kThreads = kWarpSize;
  static constexpr int kOutStride = kTile + 8;  // floats: four rows, which are stored together, fill the 32 banks once
  struct SharedStorage {
    alignas(wmma::kAlignmentBytes) uint16_t lhs[kTile * kTile];  // bits of a float16 or bfloat16
    alignas(wmma::kAlignmentBytes) uint16_t rhs[kTile * kTile];
    alignas(wmma::kAlignmentBytes) float out[kTile * kOutStride];
  };
};

// Whether wmma can read every tile of the operand in place, as far as its shape tells.
bool made_of_tiles(const MatrixView& view) {
  return view.rows % kTile == 0 && view.cols % kTile == 0 && view.ld % wmma::kGlobalLdElems == 0 &&
         view.batch_stride % wmma::kGlobalLdElems == 0;
}

// Whether, given that its shape allows it, its address does. The instruction takes a 32-bit leading dimension.
bool directly_loadable(const void* data, const MatrixView& view) {
  return reinterpret_cast<uintptr_t>(data) % wmma::kAlignmentBytes == 0 && view.ld <= INT32_MAX;
}

// The fragment of the tile at g_tile, by way of s_tile if `direct` is false. A whole warp calls it.
template <class Fragment, class T = typename Fragment::Element>
__device__ void load_tile(Fragment& fragment, const T* g_tile, int64_t ld, bool direct, uint16_t* s_tile) {
  if (direct) {
    wmma::load_global(fragment, g_tile, static_cast<int>(ld));
    return;
  }
  __syncthreads();  // the last tile has been read
#pragma unroll
  for (int i = threadIdx.x; i < kTile * kTile; i += kWarpSize) {
    reinterpret_cast<T*>(s_tile)[i] = g_tile[i / kTile * ld + i % kTile];
  }
  __syncthreads();
  wmma::load_shared(fragment, reinterpret_cast<const T*>(s_tile), kTile);
}

// The operands are multiples of 16 in rows and columns; M and N say what of out exists.
template <class Config, class T, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads)
    wmma_naive_kernel(GlobalMatrix<T, kLhsTransposed> g_lhs, GlobalMatrix<T, kRhsTransposed> g_rhs, bool lhs_direct,
                      bool rhs_direct, Epilogue epilogue, TileGrid grid, int64_t M, int64_t N, int64_t padded_K) {
  auto& smem = shared_storage<typename Config::SharedStorage>();
  const TileCoord tile = grid.tile(blockIdx.x);

  wmma::Accumulator accumulator;
  for (int64_t k = 0; k < padded_K; k += kTile) {
    wmma::FragmentA<T, kLhsTransposed> r_lhs;
    wmma::FragmentB<T, kRhsTransposed> r_rhs;
    load_tile(r_lhs, g_lhs.at(tile.batch, tile.row, k), g_lhs.ld, lhs_direct, smem.lhs);
    load_tile(r_rhs, g_rhs.at(tile.batch, k, tile.col), g_rhs.ld, rhs_direct, smem.rhs);
    wmma::mma(accumulator, r_lhs, r_rhs);
  }

  wmma::store_shared(smem.out, accumulator, Config::kOutStride);
  __syncthreads();
  constexpr int kQuads = kTile / 4;  // the epilogue takes four neighbouring columns at a time
  for (int i = threadIdx.x; i < kTile * kQuads; i += Config::kThreads) {
    const int row = i / kQuads, col = i % kQuads * 4;
    const float* s_quad = smem.out + row * Config::kOutStride + col;
    if (tile.row + row < M && tile.col + col < N) {
      epilogue.store4(tile.batch, tile.row + row, tile.col + col, N, {s_quad[0], s_quad[1], s_quad[2], s_quad[3]});
    }
  }
}

int64_t copy_bytes(const Problem& problem, const MatrixView& view) {
  if (made_of_tiles(view)) return 0;
  return padded_bytes(padded_view(view, kTile), problem.batch, size_bytes(problem.lhs_dtype));
}

int64_t workspace_bytes(const Problem& problem) {
  return copy_bytes(problem, problem.lhs) + copy_bytes(problem, problem.rhs);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  const Problem& p = args.problem;
  PaddableOperand lhs = {args.lhs, p.lhs}, rhs = {args.rhs, p.rhs};
  char* workspace = static_cast<char*>(args.workspace);
  for (PaddableOperand* operand : {&lhs, &rhs}) {
    if (made_of_tiles(operand->view)) continue;
    if (std::string error = operand->pad(workspace, padded_view(operand->view, kTile), p, p.lhs_dtype, args.stream);
        !error.empty()) {
      return error;
    }
  }

  const TileGrid grid(Config::kCtaTile, p.M, p.N);
  const auto launch_for = [&]<class T>() {
    return dispatch_layout(p.layout(), [&]<bool kLhsTransposed, bool kRhsTransposed>() {
      return launch_kernel(wmma_naive_kernel<Config, T, kLhsTransposed, kRhsTransposed>, grid.ctas(p.batch),
                           Config::kThreads, sizeof(typename Config::SharedStorage), args.stream,
                           GlobalMatrix<T, kLhsTransposed>(lhs.data, lhs.view),
                           GlobalMatrix<T, kRhsTransposed>(rhs.data, rhs.view), directly_loadable(lhs.data, lhs.view),
                           directly_loadable(rhs.data, rhs.view), Epilogue(args), grid, p.M, p.N, lhs.view.cols);
    });
  };
  return p.lhs_dtype == DType::kF16 ? launch_for.template operator()<__half>()
                                    : launch_for.template operator()<__nv_bfloat16>();
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(wmma_naive, &kKernel<Config16x16>)
