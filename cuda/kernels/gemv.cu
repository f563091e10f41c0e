// gemv: a row of out is a row of lhs times the matrix rhs; a CTA computes some elements of one row.
//
// What it adds: for a single row (or column, which is the same with lhs and rhs exchanged) tensor cores have nothing to
// reuse, and filling a pipeline in shared memory takes longer than multiplying. Here each thread has its own vectors of
// the matrix, and multiplies them where they arrive: a ring of k-tiles in its registers takes the place of the
// pipeline, and no thread waits for another before the end. Threads lie along the matrix as it is in memory, so that
// rows of any length and at any address are read in whole segments; the row of lhs comes from the L1 cache, whose lines
// all threads share. Batches of small products take as long as DRAM takes to answer; the matrix of a large one is read
// at DRAM's rate. More rows than one read the matrix once for each. Source: Bell and Garland, "Implementing sparse
// matrix-vector multiplication on throughput-oriented processors", SC 2009, section 4, for giving neighbouring threads
// neighbouring elements, whichever way the matrix lies.
#include <algorithm>

#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "ptx/shared_storage.cuh"
#include "tile/mma_family.cuh"
#include "tile/operand_tile.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

// A thread has one vector of each k-tile, whose OUTS x kTileK elements lie along K or along N.
// STAGES k-tiles are in registers: the fewer, the sooner a CTA with a short K is done, and the more of them fit.
template <int ELEMENT_BYTES, int OUTS, int STAGES, int CTAS>
struct TileConfig {
  static constexpr std::string_view kFamily = "gemv";
  static constexpr auto kDTypes = kMmaDTypes<ELEMENT_BYTES>;
  static constexpr int kElementBytes = ELEMENT_BYTES, kVector = kVectorBytes / ELEMENT_BYTES;
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize, kCtas = CTAS;
  static constexpr int kOuts = OUTS, kTileK = kThreads * kVector / OUTS;
  static constexpr Tile kCtaTile = {1, kOuts, kTileK}, kWarpTile = {1, kOuts, kTileK / kWarps};
  static constexpr int kStages = STAGES;
  struct SharedStorage {
    float sums[kWarps][kOuts];
  };
};

struct Config1x1x2048 : TileConfig<2, 1, 4, 3> {};
struct Config1x4x512 : TileConfig<2, 4, 4, 3> {};
struct Config1x16x128 : TileConfig<2, 16, 4, 3> {};
struct Config1x64x32 : TileConfig<2, 64, 2, 5> {};
struct Config1x128x16 : TileConfig<2, 128, 2, 5> {};
struct Config1x1x1024 : TileConfig<4, 1, 4, 4> {};
struct Config1x4x256 : TileConfig<4, 4, 4, 4> {};
struct Config1x16x64 : TileConfig<4, 16, 4, 4> {};
struct Config1x64x16 : TileConfig<4, 64, 4, 4> {};

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

  __device__ const Element* at(int64_t batch, int64_t row, int64_t k) const {
    return data + batch * batch_stride + row * row_stride + k * k_stride;
  }
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Which kVector elements of a k-tile a thread has: kRun ones of each of kRuns runs, which are contiguous: along K, of
// one element of out, or along N, of one k. kVectors: those of a run are neighbours at a multiple of 16 bytes, of which
// all exist or none; else they lie kLanes apart, so that neighbouring threads read neighbours.
template <class Config, bool kVectors, bool kAlongK>
struct Share {
  static constexpr int kVector = Config::kVector, kTileK = Config::kTileK;
  static constexpr int kRun = kAlongK ? kVector : std::min(kVector, Config::kOuts), kRuns = kVector / kRun;
  static constexpr int kLanes = (kAlongK ? kTileK : Config::kOuts) / kRun, kApart = kVectors ? 1 : kLanes;
  static constexpr int kSharers = std::min(kLanes, kWarpSize);  // of a run, in one warp
  static_assert(kWarpSize % kSharers == 0 && (!kVectors || kRuns == 1));
  int run = static_cast<int>(threadIdx.x) / kLanes * kRuns, lane = static_cast<int>(threadIdx.x) % kLanes;

  // Of the i-th of a thread's elements.
  __device__ int along_run(int i) const { return kVectors ? lane * kVector + i : lane + i % kRun * kApart; }
  __device__ int k(int i) const { return kAlongK ? along_run(i) : run + i / kRun; }
  __device__ int out(int i) const { return kAlongK ? run : along_run(i); }
};

// A thread's elements of a k-tile, and those of the row that they are multiplied with.
template <class Element, int kVector, int kRow>
struct Stage {
  alignas(16) Element matrix[kVector];
  alignas(16) Element row[kRow];
};

template <class Element>
__device__ inline void load_vector(Element* r_elements, const Element* g_elements, bool exists) {
  uint4 vector = make_uint4(0, 0, 0, 0);
  if (exists) vector = __ldg(reinterpret_cast<const uint4*>(g_elements));
  *reinterpret_cast<uint4*>(r_elements) = vector;
}

// What of `count` lies inside a tile.
__device__ inline int inside(int64_t count, int tile) { return count < tile ? static_cast<int>(count) : tile; }

// With `column`, lhs is the matrix, and a CTA computes elements of one column of out: `N` is then their number.
template <class Config, class Element, bool kVectors, bool kAlongK>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtas)
    gemv_kernel(VectorOperand<Element> g_vectors, GlobalMatrix<Element, kAlongK> g_matrix, Epilogue epilogue,
                bool column, TileGrid grid, int64_t N, int64_t K) {
  using Mine = Share<Config, kVectors, kAlongK>;
  constexpr int kVector = Config::kVector, kTileK = Config::kTileK;
  // Elements one by one are whole registers each: half as many k-tiles.
  constexpr int kStages = kVectors ? Config::kStages : Config::kStages / 2, kRow = kAlongK ? kVector : Mine::kRuns;
  constexpr int kTimes = kVector / kRow;  // that each element of the row is multiplied
  auto& smem = shared_storage<typename Config::SharedStorage>();
  const Mine mine;
  const TileCoord first = grid.tile(blockIdx.x);
  // No CTA has none: of one, said as a constant, or the compiler makes a second loop that loads nothing of the matrix.
  const int outs = Config::kOuts == 1 ? 1 : inside(N - first.col, Config::kOuts);
  const int64_t ld = g_matrix.ld, k_stride = g_vectors.k_stride;
  const Element* g_row = g_vectors.at(first.batch, first.row, mine.k(0));
  const Element* g_elements = g_matrix.at(first.batch, mine.k(0), first.col + mine.out(0));
  int64_t left = K - mine.k(0);  // steps along K from the thread's first one on

  // What does not exist is zeros.
  const auto load_next = [&](Stage<Element, kVector, kRow>& stage) {
    if constexpr (kVectors) {
      load_vector(stage.matrix, g_elements, left > 0 && mine.out(0) < outs);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int k_step = mine.k(i) - mine.k(0), out_step = mine.out(i) - mine.out(0);
        const bool exists = k_step < left && mine.out(i) < outs;
        stage.matrix[i] = exists ? __ldg(g_elements + (kAlongK ? k_step : k_step * ld + out_step)) : Element{};
      }
    }
    if constexpr (kVectors && kAlongK) {
      load_vector(stage.row, g_row, left > 0);
    } else {
#pragma unroll
      for (int i = 0; i < kRow; ++i) {
        const int k_step = mine.k(i * kTimes) - mine.k(0);
        stage.row[i] = k_step < left ? __ldg(g_row + k_step * k_stride) : Element{};
      }
    }
    g_row += kTileK * k_stride;
    g_elements += kAlongK ? kTileK : kTileK * ld;
    left -= kTileK;
  };

  float sums[Mine::kRun] = {};
  Stage<Element, kVector, kRow> r_stages[kStages];
#pragma unroll
  for (int i = 0; i < kStages; ++i) load_next(r_stages[i]);
#pragma unroll 1
  for (int64_t k = 0; k < K; k += kStages * kTileK) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        float& sum = sums[i % Mine::kRun];
        sum = fmaf(to_float(r_stages[stage].row[i / kTimes]), to_float(r_stages[stage].matrix[i]), sum);
      }
      load_next(r_stages[stage]);
    }
  }

  constexpr uint32_t kAll = 0xFFFFFFFFu;
  constexpr int kSharers = Mine::kSharers, kSharedBy = kAlongK ? Mine::kLanes / kSharers : Config::kWarps;  // warps
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if constexpr (kAlongK) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Mine::kRun; ++i) sum += sums[i];
#pragma unroll
    for (int apart = 1; apart < kSharers; apart *= 2) sum += __shfl_xor_sync(kAll, sum, apart);
    if (lane % kSharers == 0) smem.sums[warp % kSharedBy][mine.run] = sum;
  } else {
#pragma unroll
    for (int i = 0; i < Mine::kRun; ++i) {
#pragma unroll
      for (int apart = kSharers; apart < kWarpSize; apart *= 2) sums[i] += __shfl_xor_sync(kAll, sums[i], apart);
      if (lane < kSharers) smem.sums[warp][mine.out(i)] = sums[i];
    }
  }
  __syncthreads();  // the sums of all warps are there
  const int out = static_cast<int>(threadIdx.x);
  if (out >= outs) return;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kSharedBy; ++i) sum += smem.sums[i][out];
  const TileCoord tile = grid.tile(blockIdx.x);  // found again, not kept in registers
  const int64_t at = tile.col + out;
  epilogue.store(tile.batch, column ? at : tile.row, column ? tile.row : at, sum);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  const Problem& p = args.problem;
  const bool column = p.N == 1;
  const MatrixView &view = column ? p.lhs : p.rhs, &row_view = column ? p.rhs : p.lhs;
  const void *matrix = column ? args.lhs : args.rhs, *row = column ? args.rhs : args.lhs;
  const bool along_k = view.transposed != column, row_along_k = row_view.transposed == column;
  const int64_t rows = column ? p.N : p.M, cols = column ? p.M : p.N;
  const TileGrid grid(Config::kCtaTile, rows, cols);
  const auto aligned = [](const void* data, const MatrixView& view) {
    return runs_aligned(data, view, Config::kElementBytes);
  };
  const bool row_fits = row_along_k && aligned(row, row_view) && p.K % Config::kVector == 0;
  const bool fits = aligned(matrix, view) && (along_k ? row_fits : cols % Config::kVector == 0);

  const auto launch_for = [&]<class Element, bool kVectors, bool kAlongK>() {
    return launch_kernel(gemv_kernel<Config, Element, kVectors, kAlongK>, grid.ctas(p.batch), Config::kThreads,
                         describe<Config>().smem_bytes, args.stream, VectorOperand<Element>(row, row_view, row_along_k),
                         GlobalMatrix<Element, kAlongK>(matrix, view), Epilogue(args), column, grid, cols, p.K);
  };
  const auto launch_element = [&]<class Element>() {
    if (along_k) {
      return fits ? launch_for.template operator()<Element, true, true>()
                  : launch_for.template operator()<Element, false, true>();
    }
    if constexpr (Config::kOuts >= Config::kVector) {
      if (fits) return launch_for.template operator()<Element, true, false>();
    }
    return launch_for.template operator()<Element, false, false>();
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

JAXGEMM_FAMILY(gemv, &kKernel<Config1x1x2048>, &kKernel<Config1x4x512>, &kKernel<Config1x16x128>,
               &kKernel<Config1x64x32>, &kKernel<Config1x128x16>, &kKernel<Config1x1x1024>, &kKernel<Config1x4x256>,
               &kKernel<Config1x16x64>, &kKernel<Config1x64x16>)
