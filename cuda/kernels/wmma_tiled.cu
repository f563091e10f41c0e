// wmma_tiled: a CTA computes a tile of out from operand tiles in shared memory, with the k-tile split across its warps.
//
// What is new against wmma_naive: an element is fetched from global memory once per CTA tile, 16 bytes at a time, and
// not once per 16 x 16 tile; fragments come from shared memory (LDSM). The idea of this rung is the split of K: warps
// that share a warp tile take different k16 slices of each k-tile, so that every warp can own a large tile (more
// multiply-adds per fragment loaded) however many warps it takes to keep the SM busy. Their partial accumulators are
// summed through shared memory at the end, in a fixed order.
//
// Rows that are not whole 16-byte vectors can only be read element by element, at a third of the speed. Operands that
// CTAs read more than once are first copied into the workspace with such rows padded (tile/pad_copy.h).
//
// The next k-tile travels from global memory into registers while the current one is multiplied, and from there into
// the other of two shared memory stages: one barrier per k-tile.
//
// Source: the tiled WMMA GEMM "gemm_kernel_v4" (32 x 32 x 32, two warps that split K), here as 32x32x32.
#include <algorithm>
#include <array>

#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "ptx/shared_storage.cuh"
#include "ptx/wmma.cuh"
#include "tile/global_matrix.cuh"
#include "tile/padding.h"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

constexpr int kTile = wmma::kTile;
constexpr int kVectorElems = 8;  // elements of a 16-byte vector
constexpr int kQuad = 4;         // neighbouring columns that the epilogue takes at a time

// Rows of shared memory are padded by one vector: eight rows, which LDSM reads together, then lie in different banks.
constexpr int smem_stride(int inner) { return inner + kVectorElems; }

// Elements of a rows x cols tile in whichever storage order takes more padding.
constexpr int max_tile_elems(int rows, int cols) {
  return std::max(rows * smem_stride(cols), cols * smem_stride(rows));
}

// WARPS_M x WARPS_N warp tiles cover the CTA tile, each computed by WARPS_K warps together.
template <int CTA_M, int CTA_N, int CTA_K, int WARPS_M, int WARPS_N, int WARPS_K>
struct TileConfig {
  static constexpr std::string_view kFamily = "wmma_tiled";
  static constexpr std::array kDTypes = {
      DTypes{DType::kF16, DType::kF16, DType::kF16}, DTypes{DType::kF16, DType::kF16, DType::kF32},
      DTypes{DType::kBF16, DType::kBF16, DType::kBF16}, DTypes{DType::kBF16, DType::kBF16, DType::kF32}};
  static constexpr int kWarpsM = WARPS_M, kWarpsN = WARPS_N, kWarpsK = WARPS_K;
  static constexpr Tile kCtaTile = {CTA_M, CTA_N, CTA_K}, kWarpTile = {CTA_M / WARPS_M, CTA_N / WARPS_N, CTA_K};
  static constexpr int kStages = 2, kThreads = WARPS_M * WARPS_N * WARPS_K * kWarpSize;

  static constexpr int kFragmentsM = kWarpTile.m / kTile, kFragmentsN = kWarpTile.n / kTile;
  static constexpr int kSlices = CTA_K / kTile / WARPS_K;  // k16 slices of a k-tile that one warp multiplies
  static_assert(kFragmentsM * kTile * WARPS_M == CTA_M && kFragmentsN * kTile * WARPS_N == CTA_N);
  static_assert(kSlices * kTile * WARPS_K == CTA_K);

  // The accumulators are reduced strip by strip: one row of fragments of every warp.
  static constexpr int kStripRows = WARPS_M * kTile;
  static constexpr int kPartialStride = CTA_N + 8;  // floats: four rows, stored together, lie in different banks

  union SharedStorage {
    struct {
      alignas(wmma::kAlignmentBytes) uint16_t lhs[max_tile_elems(CTA_M, CTA_K)];  // bits of float16 or bfloat16
      alignas(wmma::kAlignmentBytes) uint16_t rhs[max_tile_elems(CTA_K, CTA_N)];
    } stages[kStages];
    alignas(wmma::kAlignmentBytes) float partials[WARPS_K][kStripRows * kPartialStride];  // when the k-loop is over
  };
};

struct Config32x32x32 : TileConfig<32, 32, 32, 1, 1, 2> {};
struct Config64x64x64 : TileConfig<64, 64, 64, 1, 1, 4> {};
struct Config128x128x32 : TileConfig<128, 128, 32, 2, 2, 1> {};  // no split: what the split is measured against
struct Config128x128x64 : TileConfig<128, 128, 64, 2, 2, 2> {};

// An operand's tile, OUTER runs of INNER neighbouring elements, on its way from global to shared memory: each thread
// holds kVectors vectors of it.
template <class T, int OUTER, int INNER, int THREADS>
struct TileCopy {
  static constexpr int kVectorsPerRun = INNER / kVectorElems;
  static constexpr int kRunsPerStep = THREADS / kVectorsPerRun;  // runs that all threads together copy at a time
  static constexpr int kVectors = OUTER / kRunsPerStep;
  static constexpr int kStride = smem_stride(INNER);
  static_assert(kVectorsPerRun * kVectorElems == INNER && kRunsPerStep * kVectorsPerRun == THREADS &&
                kVectors * kRunsPerStep == OUTER);

  uint4 r_vectors[kVectors];

  __device__ static int outer(int i) { return static_cast<int>(threadIdx.x) / kVectorsPerRun + i * kRunsPerStep; }
  __device__ static int inner() { return static_cast<int>(threadIdx.x) % kVectorsPerRun * kVectorElems; }

  // Elements beyond outer_left runs or inner_left elements read as zero. `whole_vectors` promises that vectors are
  // aligned and lie either inside or outside the matrix.
  __device__ void load(const T* g_tile, int64_t ld, int outer_left, int inner_left, bool whole_vectors) {
    const T* g_vector = g_tile + outer(0) * ld + inner();
#pragma unroll
    for (int i = 0; i < kVectors; ++i, g_vector += kRunsPerStep * ld) {
      const int valid = outer(i) < outer_left ? inner_left - inner() : 0;
      if (whole_vectors) {
        r_vectors[i] = valid > 0 ? *reinterpret_cast<const uint4*>(g_vector) : make_uint4(0, 0, 0, 0);
      } else {
        r_vectors[i] = make_uint4(pair(g_vector, 0, valid), pair(g_vector, 2, valid), pair(g_vector, 4, valid),
                                  pair(g_vector, 6, valid));
      }
    }
  }

  __device__ void store(uint16_t* s_tile) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      *reinterpret_cast<uint4*>(s_tile + outer(i) * kStride + inner()) = r_vectors[i];
    }
  }

 private:
  // Elements i and i + 1 of g_vector, of which the first `valid` exist.
  __device__ static uint32_t pair(const T* g_vector, int i, int valid) {
    const uint16_t* g_bits = reinterpret_cast<const uint16_t*>(g_vector);
    const uint32_t low = i < valid ? g_bits[i] : 0u, high = i + 1 < valid ? g_bits[i + 1] : 0u;
    return low | high << 16;
  }
};

template <class Config>
int64_t workspace_bytes(const Problem& p) {
  return whole_vector_padding(p, Config::kCtaTile).workspace_bytes(p);
}

// How much of a tile of `size` that starts at `first` lies before `end`; 0 if it starts behind.
__device__ int left(int64_t first, int64_t end, int size) {
  if (first >= end) return 0;
  return end - first < size ? static_cast<int>(end - first) : size;
}

template <class Config, class T, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads)
    wmma_tiled_kernel(GlobalMatrix<T, kLhsTransposed> g_lhs, GlobalMatrix<T, kRhsTransposed> g_rhs,
                      bool lhs_whole_vectors, bool rhs_whole_vectors, Epilogue epilogue, TileGrid grid, int64_t M,
                      int64_t N, int64_t K) {
  constexpr Tile kCta = Config::kCtaTile, kWarp = Config::kWarpTile;
  using LhsCopy = TileCopy<T, kLhsTransposed ? kCta.k : kCta.m, kLhsTransposed ? kCta.m : kCta.k, Config::kThreads>;
  using RhsCopy = TileCopy<T, kRhsTransposed ? kCta.n : kCta.k, kRhsTransposed ? kCta.k : kCta.n, Config::kThreads>;
  auto& smem = shared_storage<typename Config::SharedStorage>();

  const TileCoord tile = grid.tile(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int warp_n = warp % Config::kWarpsN;
  const int warp_m = warp / Config::kWarpsN % Config::kWarpsM;
  const int warp_k = warp / (Config::kWarpsN * Config::kWarpsM);

  LhsCopy lhs_copy;
  RhsCopy rhs_copy;
  const int m_left = left(tile.row, M, kCta.m), n_left = left(tile.col, N, kCta.n);
  const auto load = [&](int64_t k) {  // of a k-tile past the end: zeros
    const int k_left = left(k, K, kCta.k);
    lhs_copy.load(g_lhs.at(tile.batch, tile.row, k), g_lhs.ld, kLhsTransposed ? k_left : m_left,
                  kLhsTransposed ? m_left : k_left, lhs_whole_vectors);
    rhs_copy.load(g_rhs.at(tile.batch, k, tile.col), g_rhs.ld, kRhsTransposed ? n_left : k_left,
                  kRhsTransposed ? k_left : n_left, rhs_whole_vectors);
  };
  const auto store = [&](int stage) {
    lhs_copy.store(smem.stages[stage].lhs);
    rhs_copy.store(smem.stages[stage].rhs);
  };

  wmma::Accumulator accumulators[Config::kFragmentsM][Config::kFragmentsN];
  const auto multiply = [&](int stage) {
    const T* s_lhs = reinterpret_cast<const T*>(smem.stages[stage].lhs);
    const T* s_rhs = reinterpret_cast<const T*>(smem.stages[stage].rhs);
#pragma unroll
    for (int slice = 0; slice < Config::kSlices; ++slice) {
      const int k = (slice * Config::kWarpsK + warp_k) * kTile;
      wmma::FragmentA<T, kLhsTransposed> r_lhs[Config::kFragmentsM];
#pragma unroll
      for (int i = 0; i < Config::kFragmentsM; ++i) {
        const int m = warp_m * kWarp.m + i * kTile;
        const int offset = kLhsTransposed ? k * LhsCopy::kStride + m : m * LhsCopy::kStride + k;
        wmma::load_shared(r_lhs[i], s_lhs + offset, LhsCopy::kStride);
      }
#pragma unroll
      for (int j = 0; j < Config::kFragmentsN; ++j) {
        const int n = warp_n * kWarp.n + j * kTile;
        const int offset = kRhsTransposed ? n * RhsCopy::kStride + k : k * RhsCopy::kStride + n;
        wmma::FragmentB<T, kRhsTransposed> r_rhs;
        wmma::load_shared(r_rhs, s_rhs + offset, RhsCopy::kStride);
#pragma unroll
        for (int i = 0; i < Config::kFragmentsM; ++i) wmma::mma(accumulators[i][j], r_lhs[i], r_rhs);
      }
    }
  };

  // Invariant at the top of the loop: `stage` holds the k-tile at k, the registers hold the one after it, and nobody
  // reads the other stage any more.
  int stage = 0;
  load(0);
  store(stage);
  load(kCta.k);
  __syncthreads();
  for (int64_t k = 0; k < K; k += kCta.k) {
    store(stage ^ 1);
    load(k + 2 * kCta.k);
    multiply(stage);
    stage ^= 1;
    __syncthreads();
  }

  // Each turn stores the first row of fragments that is left, then lets all threads sum and write its rows.
#pragma unroll 1
  for (int strip = 0; strip < Config::kFragmentsM; ++strip) {
#pragma unroll
    for (int j = 0; j < Config::kFragmentsN; ++j) {
      float* s_fragment =
          smem.partials[warp_k] + warp_m * kTile * Config::kPartialStride + warp_n * kWarp.n + j * kTile;
      wmma::store_shared(s_fragment, accumulators[0][j], Config::kPartialStride);
#pragma unroll
      for (int i = 1; i < Config::kFragmentsM; ++i) accumulators[i - 1][j] = accumulators[i][j];
    }
    __syncthreads();
    constexpr int kQuadsPerRow = kCta.n / kQuad;
#pragma unroll 1
    for (int quad = static_cast<int>(threadIdx.x); quad < Config::kStripRows * kQuadsPerRow; quad += Config::kThreads) {
      const int row = quad / kQuadsPerRow, col = quad % kQuadsPerRow * kQuad;
      float sum[kQuad] = {};
#pragma unroll
      for (int part = 0; part < Config::kWarpsK; ++part) {
        const float4 s_quad =
            *reinterpret_cast<const float4*>(smem.partials[part] + row * Config::kPartialStride + col);
        sum[0] += s_quad.x;
        sum[1] += s_quad.y;
        sum[2] += s_quad.z;
        sum[3] += s_quad.w;
      }
      const int64_t m = tile.row + row / kTile * kWarp.m + strip * kTile + row % kTile;
      const int64_t n = tile.col + col;
      if (m < M && n < N) epilogue.store4(tile.batch, m, n, N, sum);
    }
    __syncthreads();  // the strip has been read
  }
}

template <class Config>
std::string launch(const GemmArgs& args) {
  const Problem& p = args.problem;
  PaddableOperand lhs = {args.lhs, p.lhs}, rhs = {args.rhs, p.rhs};
  char* workspace = static_cast<char*>(args.workspace);
  const Padding padding = whole_vector_padding(p, Config::kCtaTile);
  if (std::string error = padding.apply(lhs, rhs, workspace, args); !error.empty()) return error;

  const TileGrid grid(Config::kCtaTile, p.M, p.N);
  const auto launch_for = [&]<class T>() {
    return dispatch_layout(p.layout(), [&]<bool kLhsTransposed, bool kRhsTransposed>() {
      return launch_kernel(wmma_tiled_kernel<Config, T, kLhsTransposed, kRhsTransposed>, grid.ctas(p.batch),
                           Config::kThreads, sizeof(typename Config::SharedStorage), args.stream,
                           GlobalMatrix<T, kLhsTransposed>(lhs.data, lhs.view),
                           GlobalMatrix<T, kRhsTransposed>(rhs.data, rhs.view), lhs.whole_vectors(p.lhs_dtype),
                           rhs.whole_vectors(p.rhs_dtype), Epilogue(args), grid, p.M, p.N, p.K);
    });
  };
  return p.lhs_dtype == DType::kF16 ? launch_for.template operator()<__half>()
                                    : launch_for.template operator()<__nv_bfloat16>();
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes<Config>};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(wmma_tiled, &kKernel<Config32x32x32>, &kKernel<Config64x64x64>, &kKernel<Config128x128x32>,
               &kKernel<Config128x128x64>)
