// gemv: a row of out is a row of lhs times the matrix rhs; a CTA computes some elements of one row.
//
// What it adds: for a single row (or column, which is the same with lhs and rhs exchanged) tensor cores have nothing to
// reuse, and filling a pipeline takes longer than multiplying. Here nothing is staged but the row of lhs: each thread
// has its own vectors of the matrix, all that fit its registers under way at once, and multiplies them where they
// arrive. Threads lie along the matrix as it is in memory, so that rows of any length and at any address are read in
// whole segments. Batches of small products take as long as DRAM takes to answer; the matrix of a large one is read at
// DRAM's rate. More rows than one read the matrix once for each. Source: Bell and Garland, "Implementing sparse
// matrix-vector multiplication on throughput-oriented processors", SC 2009, section 4, for giving neighbouring threads
// neighbouring elements, whichever way the matrix lies.
#include <array>

#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "ptx/shared_storage.cuh"
#include "tile/mma_family.cuh"
#include "tile/operand_tile.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

// A thread has one vector of each k-tile, whose `OUTS` x kTileK elements lie along K or along N.
template <int ELEMENT_BYTES, int OUTS>
struct TileConfig {
  static constexpr std::string_view kFamily = "gemv";
  static constexpr auto kDTypes = kMmaDTypes<ELEMENT_BYTES>;
  static constexpr int kElementBytes = ELEMENT_BYTES, kVector = kVectorBytes / ELEMENT_BYTES;
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize, kCtas = 3;
  static constexpr int kOuts = OUTS, kTileK = kThreads * kVector / OUTS;
  static constexpr Tile kCtaTile = {1, kOuts, kTileK}, kWarpTile = {1, kOuts, kTileK / kWarps};
  static constexpr int kStages = 4;  // k-tiles in registers
  static constexpr int kDepth = kStages * kTileK;
  struct SharedStorage {
    alignas(16) float vector[2][kDepth];
    float sums[kWarps][kOuts];
  };
};

struct Config1x16x128 : TileConfig<2, 16> {};
struct Config1x64x32 : TileConfig<2, 64> {};
struct Config1x16x64 : TileConfig<4, 16> {};
struct Config1x64x16 : TileConfig<4, 64> {};

// The row of lhs, for each of the batch and each row: elements k_stride apart.
template <class Element>
struct VectorOperand {
  const Element* data;
  int64_t batch_stride, row_stride, k_stride;

  VectorOperand(const void* data, const MatrixView& view, bool along_k)
      : data(static_cast<const Element*>(data)),
        batch_stride(view.batch_stride),
        row_stride(along_k ? view.ld : 1),
        k_stride(along_k ? 1 : view.ld) {}

  __device__ const Element* at(int64_t batch, int64_t row) const {
    return data + batch * batch_stride + row * row_stride;
  }
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Which elements of the k-tiles that are under way a thread has: of each kVector ones of a run, which is contiguous:
// along K, of one element of out, or along N, of one k. kVectors: they are neighbours at a multiple of 16 bytes, of
// which all exist or none; else they lie kLanes apart, so that neighbouring threads read neighbours.
template <class Config, bool kAlongK, bool kVectors>
struct Share {
  static constexpr int kVector = Config::kVector, kTileK = Config::kTileK;
  static constexpr int kLanes = (kAlongK ? kTileK : Config::kOuts) / kVector, kApart = kVectors ? 1 : kLanes;
  static_assert(kWarpSize % kLanes == 0, "shuffles add up what the lanes of a run have");
  int run = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  int first = kVectors ? lane * kVector : lane;  // of the run

  __device__ int k(int stage, int i) const { return stage * kTileK + (kAlongK ? first + i * kApart : run); }
  __device__ int out(int i) const { return kAlongK ? run : first + i * kApart; }

  // The elements of a stage, from g_first on. Of the tile `depth` steps along K exist and so many `outs`; what does not
  // is zeros.
  template <class Element>
  __device__ void load(Element (&r_elements)[kVector], const Element* g_first, int stage, int depth, int outs) const {
    if constexpr (kVectors) {
      uint4 vector = make_uint4(0, 0, 0, 0);
      if (k(stage, 0) < depth && out(0) < outs) vector = __ldg(reinterpret_cast<const uint4*>(g_first));
      *reinterpret_cast<uint4*>(r_elements) = vector;
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        r_elements[i] = k(stage, i) < depth && out(i) < outs ? __ldg(g_first + i * kApart) : Element{};
      }
    }
  }
};

// What of `count` lies inside a tile.
__device__ inline int inside(int64_t count, int tile) { return count < tile ? static_cast<int>(count) : tile; }

// With `column`, lhs is the matrix, and a CTA computes elements of one column of out: `N` is then their number.
template <class Config, class Element, bool kVectors, bool kAlongK>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtas)
    gemv_kernel(VectorOperand<Element> g_vectors, GlobalMatrix<Element, kAlongK> g_matrix, Epilogue epilogue,
                bool column, TileGrid grid, int64_t N, int64_t K) {
  using Mine = Share<Config, kAlongK, kVectors>;
  constexpr int kVector = Config::kVector, kStages = Config::kStages, kDepth = Config::kDepth;
  auto& smem = shared_storage<typename Config::SharedStorage>();
  const Mine mine;
  const int thread = static_cast<int>(threadIdx.x);
  const TileCoord first = grid.tile(blockIdx.x);
  const int outs = inside(N - first.col, Config::kOuts);
  const Element* g_vector = g_vectors.at(first.batch, first.row) + thread * g_vectors.k_stride;
  const Element* g_first = g_matrix.at(first.batch, mine.k(0, 0), first.col + mine.out(0));
  const int64_t stage_step = kAlongK ? Config::kTileK : Config::kTileK * g_matrix.ld;

  // Along K: of one element of out, a sum for each stage; along N: of kVector elements.
  constexpr int kSums = kAlongK ? kStages : kVector;
  float sums[kSums] = {};
  int buffer = 0;
#pragma unroll 1
  for (int64_t left = K; left > 0; left -= kDepth) {
    const int depth = inside(left, kDepth);
    alignas(16) Element r_matrix[kStages][kVector];
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      mine.load(r_matrix[stage], g_first + stage * stage_step, stage, depth, outs);
    }
    g_first += kStages * stage_step;
#pragma unroll
    for (int i = 0; i < kDepth; i += Config::kThreads) {
      if (kDepth % Config::kThreads != 0 && i + thread >= kDepth) break;
      smem.vector[buffer][i + thread] = i + thread < depth ? to_float(__ldg(g_vector + i * g_vectors.k_stride)) : 0.0f;
    }
    g_vector += kDepth * g_vectors.k_stride;
    // Enough for both: who writes this half again, in the turn after the next, has passed the barrier of the next one.
    __syncthreads();
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        float& sum = sums[kAlongK ? stage : i];
        sum = fmaf(smem.vector[buffer][mine.k(stage, i)], to_float(r_matrix[stage][i]), sum);
      }
    }
    buffer ^= 1;
  }

  const TileCoord tile = grid.tile(blockIdx.x);  // found again, not kept in registers
  const auto store = [&](int out, float sum) {
    const int64_t at = tile.col + out;
    epilogue.store(tile.batch, column ? at : tile.row, column ? tile.row : at, sum);
  };
  constexpr uint32_t kAll = 0xFFFFFFFFu;
  if constexpr (kAlongK) {
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    static_assert(kSums == 4);
#pragma unroll
    for (int apart = 1; apart < Mine::kLanes; apart *= 2) sum += __shfl_xor_sync(kAll, sum, apart);
    if (mine.lane == 0 && mine.run < outs) store(mine.run, sum);
  } else {
    const int warp = thread / kWarpSize;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
#pragma unroll
      for (int apart = Mine::kLanes; apart < kWarpSize; apart *= 2) sums[i] += __shfl_xor_sync(kAll, sums[i], apart);
      if (thread % kWarpSize < Mine::kLanes) smem.sums[warp][mine.out(i)] = sums[i];
    }
    __syncthreads();  // the sums of all warps are there
    if (thread < outs) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < Config::kWarps; ++i) sum += smem.sums[i][thread];
      store(thread, sum);
    }
  }
}

template <class Config>
std::string launch(const GemmArgs& args) {
  const Problem& p = args.problem;
  const bool column = p.N == 1;
  const MatrixView& view = column ? p.lhs : p.rhs;
  const void* matrix = column ? args.lhs : args.rhs;
  const bool along_k = view.transposed != column;
  const int64_t rows = column ? p.N : p.M, cols = column ? p.M : p.N;
  const TileGrid grid(Config::kCtaTile, rows, cols);
  const bool aligned = copy_width(matrix, view, Config::kElementBytes) == CopyWidth::k16 &&
                       (along_k ? p.K : cols) % Config::kVector == 0;

  const auto launch_for = [&]<class Element, bool kVectors, bool kAlongK>() {
    const VectorOperand<Element> vectors = column ? VectorOperand<Element>(args.rhs, p.rhs, p.rhs.transposed)
                                                  : VectorOperand<Element>(args.lhs, p.lhs, !p.lhs.transposed);
    return launch_kernel(gemv_kernel<Config, Element, kVectors, kAlongK>, grid.ctas(p.batch), Config::kThreads,
                         describe<Config>().smem_bytes, args.stream, vectors,
                         GlobalMatrix<Element, kAlongK>(matrix, view), Epilogue(args), column, grid, cols, p.K);
  };
  const auto launch_element = [&]<class Element>() {
    if (aligned) {
      return along_k ? launch_for.template operator()<Element, true, true>()
                     : launch_for.template operator()<Element, true, false>();
    }
    return along_k ? launch_for.template operator()<Element, false, true>()
                   : launch_for.template operator()<Element, false, false>();
  };
  if constexpr (Config::kElementBytes == 4) {
    return launch_element.template operator()<float>();
  } else {
    return p.lhs_dtype == DType::kF16 ? launch_element.template operator()<__half>()
                                      : launch_element.template operator()<__nv_bfloat16>();
  }
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &no_workspace};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(gemv, &kKernel<Config1x16x128>, &kKernel<Config1x64x32>, &kKernel<Config1x16x64>,
               &kKernel<Config1x64x16>)
