// register_tiled: each thread accumulates an 8 x 8 block of out in registers.
//
// What it adds to smem_tiled: a thread reads 8 elements of lhs and 8 of rhs from shared memory, as four float4s, and
// does 64 multiply-adds with them; smem_tiled reads two elements for one. The load units then have time to spare, and
// the rest of the file keeps the multiply-adds fed: 128-bit loads, and the next k-tile on its way from global memory to
// registers, then to the other of two shared-memory stages, under the arithmetic on this one.
// Source: Volkov and Demmel, "Benchmarking GPUs to tune dense linear algebra", SC 2008, for blocking in registers;
// the 8 x 8 block in four quarters and the two stages are described in NVIDIA's "CUTLASS: fast linear algebra in CUDA
// C++", 2017.
#include "epilogue/epilogue.cuh"
#include "launch.cuh"
#include "ptx/shared_storage.cuh"
#include "tile/global_matrix.cuh"
#include "tile/launch_tiles.cuh"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

struct Config128x128x8 {
  static constexpr std::string_view kFamily = "register_tiled";
  static constexpr DTypes kDTypes[] = {{DType::kF32, DType::kF32, DType::kF32}};
  static constexpr Tile kCtaTile = {128, 128, 8}, kWarpTile = {32, 64, 8}, kThreadTile = {8, 8, 1};
  static constexpr int kStages = 2;
  static constexpr int kVector = 4;  // floats in a 128-bit access
  static constexpr int kLanesM = kWarpTile.m / kThreadTile.m, kLanesN = kWarpTile.n / kThreadTile.n;
  static constexpr int kWarpsM = kCtaTile.m / kWarpTile.m, kWarpsN = kCtaTile.n / kWarpTile.n;
  static constexpr int kThreads = kWarpsM * kWarpsN * 32;
  static constexpr int kMinCtasPerSm = 2;  // one computes while the other waits at its barrier
  // With 4 floats more, rows k and k + 4 lie 16 banks apart: see TileLoader::store.
  static constexpr int kPad = 4;

  // Both operands are held k-major, so that the 8 elements that a thread needs for one k are contiguous.
  template <int kExtent>
  using SharedTile = float[kCtaTile.k][kExtent + kPad];
  struct alignas(16) SharedStorage {
    SharedTile<kCtaTile.m> lhs[kStages];
    SharedTile<kCtaTile.n> rhs[kStages];
  };
  static_assert(kLanesM == 4 && kLanesN == 8, "the order of the lanes in register_tiled_kernel");
  static_assert(kCtaTile.m % kWarpTile.m == 0 && kCtaTile.n % kWarpTile.n == 0);
  static_assert(kThreadTile.m == 2 * kVector && kThreadTile.n == 2 * kVector, "a thread owns two vectors per side");
};

// One thread's share in copying one operand: one vector of each k-tile. "extent" is the operand's other dimension: M
// for lhs, N for rhs. Elements beyond extent or K become zero and are never read.
template <class Config, int kExtent, bool kContiguousK>
struct TileLoader {
  static constexpr int kVector = Config::kVector, kTileK = Config::kCtaTile.k;
  static constexpr int kVectorsAlongK = kTileK / kVector, kVectorsAlongExtent = kExtent / kVector;
  static_assert(kExtent * kTileK == kVector * Config::kThreads, "one vector of a k-tile for each thread");

  const float* g_vector;  // this thread's vector of the next k-tile to load
  int64_t ld;
  int extent_at, k_at;  // its place in the k-tile
  int extent_left;      // elements of the operand from the tile's first on, at most kExtent
  bool interior;        // no k-tile reaches beyond extent, and every vector may be read with one 128-bit load
  float r_vector[kVector];

  // g_tile is the operand's element at (first, k = 0).
  __device__ TileLoader(const float* g_tile, int64_t ld, int64_t first, int64_t extent) : ld(ld) {
    const int thread = static_cast<int>(threadIdx.x);
    extent_at = kContiguousK ? thread / kVectorsAlongK : thread % kVectorsAlongExtent * kVector;
    k_at = kContiguousK ? thread % kVectorsAlongK * kVector : thread / kVectorsAlongExtent;
    g_vector = g_tile + (kContiguousK ? extent_at * ld + k_at : k_at * ld + extent_at);
    extent_left = extent - first < kExtent ? static_cast<int>(extent - first) : kExtent;
    interior = extent_left == kExtent && is_aligned(g_tile) && ld % kVector == 0;
  }

  // Starts reading the next k-tile, if interior and if all of it exists.
  __device__ void load_whole() {
    const float4 vector = __ldg(reinterpret_cast<const float4*>(g_vector));
    r_vector[0] = vector.x;
    r_vector[1] = vector.y;
    r_vector[2] = vector.z;
    r_vector[3] = vector.w;
  }

  // Starts reading the next k-tile, of which the first k_left elements along k exist: none if k_left <= 0.
  __device__ void load_edge(int k_left) {
    const int along = kContiguousK ? k_left - k_at : extent_left - extent_at;  // elements inside, along the vector
    const int across = kContiguousK ? extent_left - extent_at : k_left - k_at;
    const int inside = across > 0 ? along : 0;
    if (inside >= kVector && is_aligned(g_vector)) {
      load_whole();
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) r_vector[i] = i < inside ? __ldg(g_vector + i) : 0.0f;
    }
  }

  __device__ void advance() { g_vector += kContiguousK ? kTileK : kTileK * ld; }

  // Transposes an operand that is contiguous along k. Its scalar stores meet no bank twice: a warp holds 16 neighbours
  // of extent for two k that are kVector apart, that is 16 banks.
  template <class SharedTile>
  __device__ void store(SharedTile& s_tile) const {
    if constexpr (kContiguousK) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) s_tile[k_at + i][extent_at] = r_vector[i];
    } else {
      *reinterpret_cast<float4*>(&s_tile[k_at][extent_at]) =
          make_float4(r_vector[0], r_vector[1], r_vector[2], r_vector[3]);
    }
  }

  static __device__ bool is_aligned(const float* g) {
    return reinterpret_cast<uintptr_t>(g) % (kVector * sizeof(float)) == 0;
  }
};

// The elements of one k that a thread multiplies: two vectors, half a warp tile apart, so that the vectors that the
// lanes of a warp read together are contiguous.
template <class Config, int kWarpExtent>
__device__ void load_fragment(const float* s_row, float (&r_fragment)[2 * Config::kVector]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 vector = *reinterpret_cast<const float4*>(s_row + half * (kWarpExtent / 2));
    r_fragment[half * Config::kVector + 0] = vector.x;
    r_fragment[half * Config::kVector + 1] = vector.y;
    r_fragment[half * Config::kVector + 2] = vector.z;
    r_fragment[half * Config::kVector + 3] = vector.w;
  }
}

template <class Config, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinCtasPerSm)
    register_tiled_kernel(GlobalMatrix<float, kLhsTransposed> g_lhs, GlobalMatrix<float, kRhsTransposed> g_rhs,
                          Epilogue epilogue, TileGrid grid, int64_t M, int64_t N, int64_t K) {
  auto& smem = shared_storage<typename Config::SharedStorage>();
  constexpr int kTileK = Config::kCtaTile.k, kVector = Config::kVector;
  constexpr int kThreadM = Config::kThreadTile.m, kThreadN = Config::kThreadTile.n;
  constexpr int kWarpM = Config::kWarpTile.m, kWarpN = Config::kWarpTile.n;

  // Lanes 2i and 2i + 1 share their columns, lanes i and i + 2 their rows: neighbours that read one address let the
  // hardware serve a 128-bit load in two passes rather than four.
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int lane_m = lane / 16 * 2 + lane % 2, lane_n = lane / 2 % Config::kLanesN;
  const int thread_m = warp / Config::kWarpsN * kWarpM + lane_m * kVector;
  const int thread_n = warp % Config::kWarpsN * kWarpN + lane_n * kVector;

  const TileCoord tile = grid.tile(blockIdx.x);
  TileLoader<Config, Config::kCtaTile.m, !kLhsTransposed> lhs_loader(g_lhs.at(tile.batch, tile.row, 0), g_lhs.ld,
                                                                     tile.row, M);
  TileLoader<Config, Config::kCtaTile.n, kRhsTransposed> rhs_loader(g_rhs.at(tile.batch, 0, tile.col), g_rhs.ld,
                                                                    tile.col, N);
  // All that the epilogue needs to know of the tile, in half the registers: the main loop has none to spare.
  const int tile_m = static_cast<int>(tile.row / Config::kCtaTile.m);
  const int tile_n = static_cast<int>(tile.col / Config::kCtaTile.n);
  const int batch = static_cast<int>(tile.batch);

  float accumulator[kThreadM][kThreadN] = {};
  const bool interior = lhs_loader.interior && rhs_loader.interior;
  const auto load = [&](int64_t k_left) {
    if (interior && k_left >= kTileK) {  // the same in all threads of the CTA, and true but along the edges
      lhs_loader.load_whole();
      rhs_loader.load_whole();
    } else {
      const int inside = k_left < kTileK ? static_cast<int>(k_left) : kTileK;
      lhs_loader.load_edge(inside);
      rhs_loader.load_edge(inside);
    }
    lhs_loader.advance();
    rhs_loader.advance();
  };
  const auto store = [&](int stage) {
    lhs_loader.store(smem.lhs[stage]);
    rhs_loader.store(smem.rhs[stage]);
  };

  int64_t k_left = K;  // from the current k-tile on
  int stage = 0;       // that holds it
  if (k_left > 0) {
    load(k_left);
    store(stage);
    __syncthreads();
  }
#pragma unroll 1  // longer straight code makes the compiler read so far ahead that it spills registers
  while (k_left > 0) {
    k_left -= kTileK;
    load(k_left);  // the next k-tile is on its way under the arithmetic of this one; after the last: zeros, unread
#pragma unroll
    for (int k = 0; k < kTileK; ++k) {
      float r_lhs[kThreadM], r_rhs[kThreadN];
      load_fragment<Config, kWarpM>(&smem.lhs[stage][k][thread_m], r_lhs);
      load_fragment<Config, kWarpN>(&smem.rhs[stage][k][thread_n], r_rhs);
#pragma unroll
      for (int m = 0; m < kThreadM; ++m) {
#pragma unroll
        for (int n = 0; n < kThreadN; ++n) accumulator[m][n] = fmaf(r_lhs[m], r_rhs[n], accumulator[m][n]);
      }
    }
    store(stage ^ 1);
    // One barrier is enough. It tells that the other stage is complete; and that everybody has read this one to its
    // end, before anybody overwrites it in the next turn.
    __syncthreads();
    stage ^= 1;
  }

  const int64_t first_row = static_cast<int64_t>(tile_m) * Config::kCtaTile.m + thread_m;
  const int64_t first_col = static_cast<int64_t>(tile_n) * Config::kCtaTile.n + thread_n;
  // Rolled up, because the epilogue with all its activations is long: 64 copies of it make a cubin of megabytes. The
  // rows move up instead, as registers can't be indexed.
#pragma unroll 1
  for (int m = 0; m < kThreadM; ++m) {
    const int64_t row = first_row + m / kVector * (kWarpM / 2) + m % kVector;
    if (row >= M) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float (&a)[kThreadN] = accumulator[0];
      const float vector[kVector] = {a[half * kVector], a[half * kVector + 1], a[half * kVector + 2],
                                     a[half * kVector + 3]};
      epilogue.store4(batch, row, first_col + half * (kWarpN / 2), N, vector);
    }
#pragma unroll
    for (int i = 0; i + 1 < kThreadM; ++i) {
#pragma unroll
      for (int n = 0; n < kThreadN; ++n) accumulator[i][n] = accumulator[i + 1][n];
    }
  }
}

template <class Config>
std::string launch(const GemmArgs& args) {
  return launch_tiles<Config, float>(args, [&]<bool kLhsTransposed, bool kRhsTransposed>() {
    return &register_tiled_kernel<Config, kLhsTransposed, kRhsTransposed>;
  });
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &no_workspace};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(register_tiled, &kKernel<Config128x128x8>)
