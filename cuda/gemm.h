// The host-side contract between the kernels and whoever calls them. No CUDA, XLA or Python header
// may be included here: the registry, the chooser and their tests run on machines without a GPU.
//
//   out[b] = activation(alpha * (lhs[b] (M x K) * rhs[b] (K x N)) + bias[b] (N)),
// accumulated in float32 (int32 for integers, which alpha, bias and activation do not follow)
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace jaxgemm {

// Every element type that crosses the contract: X(identifier as XLA's FFI spells it, NumPy name, bytes per element).
#define JAXGEMM_DTYPES(X)         \
  X(F32, "float32", 4)            \
  X(F16, "float16", 2)            \
  X(BF16, "bfloat16", 2)          \
  X(S8, "int8", 1)                \
  X(S32, "int32", 4)              \
  X(F8E4M3FN, "float8_e4m3fn", 1) \
  X(F8E5M2, "float8_e5m2", 1)

// Every activation of the epilogue: X(identifier, public name).
#define JAXGEMM_ACTIVATIONS(X) \
  X(None, "none")              \
  X(Relu, "relu")              \
  X(GeluTanh, "gelu_tanh")     \
  X(GeluErf, "gelu_erf")       \
  X(Silu, "silu")

// kHighest forbids rounding float32 operands to a narrower type before they are multiplied. Sums of 8-bit
// floating-point products may then stay in the tensor cores, which have fewer bits for them than float32 has, for some
// k-tiles only.
#define JAXGEMM_PRECISIONS(X) \
  X(Default, "default")       \
  X(Highest, "highest")

// Sums of so few products at kHighest are too exact for what tensor cores make of float32: epilogue/recompute.cuh.
inline constexpr int64_t kFewProducts = 16;

// Zero points of quantised weights: the code that means 0 is in the middle of all codes; or is an integer, or a
// floating-point number, of each group.
#define JAXGEMM_ZEROS(X) \
  X(Middle, "middle")    \
  X(Integer, "integer")  \
  X(Float, "float")

#define JAXGEMM_ENUMERATOR(id, ...) k##id,
enum class DType : int8_t { JAXGEMM_DTYPES(JAXGEMM_ENUMERATOR) };
enum class Activation : int8_t { JAXGEMM_ACTIVATIONS(JAXGEMM_ENUMERATOR) };
enum class Precision : int8_t { JAXGEMM_PRECISIONS(JAXGEMM_ENUMERATOR) };
enum class Zeros : int8_t { JAXGEMM_ZEROS(JAXGEMM_ENUMERATOR) };
#undef JAXGEMM_ENUMERATOR

std::string_view name(DType dtype);
std::string_view name(Activation activation);
std::string_view name(Precision precision);
std::string_view name(Zeros zeros);
int64_t size_bytes(DType dtype);

// How lhs (first letter) and rhs (second) lie in memory: N = row-major as written, T = stored transposed.
enum class Layout : int8_t { kNN, kNT, kTN, kTT };
inline constexpr std::array<std::string_view, 4> kLayoutNames = {"NN", "NT", "TN", "TT"};

// One operand: `batch` matrices of rows x cols. Element (b, i, j) lies at
//   b * batch_stride + i * ld + j            (row-major), or
//   b * batch_stride + j * ld + i            (transposed),
// all in elements. batch_stride == 0 means that every batch reads the same matrix.
struct MatrixView {
  int64_t rows = 0, cols = 0, ld = 0, batch_stride = 0;
  bool transposed = false;
  bool operator==(const MatrixView&) const = default;
};

// The first `whole` tiles of out (where CTAs form clusters, the clusters' tiles) are computed by one CTA each, every
// other one by `splits`, which share its K. Only kernels whose CTAs stay, those with `tma`, are given whole tiles.
// Where `splits` is 1, these are dealt out beforehand, and the others taken by who comes to have time: takes_tiles().
struct KSplit {
  int64_t whole = 0, splits = 1;
};

// rhs where it is quantised: element (k, n) is (code - zero) * scale, with scale and zero of group k / group_size and
// column n. Codes lie packed in tiles of kPackedTileK x kPackedTileN (tile/packed.cuh), dense; scales and zeros, the
// latter of a byte each where they are integers, are (groups x N), dense, for each batch.
struct Codes {
  int bits = 0;            // of a code; 0: rhs is not quantised
  int64_t group_size = 1;  // rows of a group; the last may have fewer
  DType scale_dtype = DType::kBF16;
  Zeros zeros = Zeros::kMiddle;
  bool operator==(const Codes&) const = default;
  int64_t groups(int64_t K) const { return (K + group_size - 1) / group_size; }
};
inline constexpr int kPackedTileK = 64, kPackedTileN = 16;
inline constexpr int kMostZero = 127;  // integers beyond it count as it

struct Problem {
  int64_t batch = 1, M = 0, N = 0, K = 0;
  MatrixView lhs, rhs, out;  // out is never transposed and never shared between batches
  DType lhs_dtype = DType::kF32, rhs_dtype = DType::kF32, out_dtype = DType::kF32;
  Precision precision = Precision::kDefault;
  Activation activation = Activation::kNone;
  bool has_alpha = false;  // a float32 number on the device: a changed scale is no other program
  bool has_bias = false;   // a vector of N elements, or one for each of the batch, of a dtype that takes_bias()
  int sm = 0;              // compute capability of the GPU times ten, e.g. 90
  // Whether operands may be copied into the workspace by kernels that can do without. They may not where sizes are
  // known at run time only, as that of the workspace would be.
  bool may_copy = true;
  KSplit split = {0, 0};  // asked of kernels with split_k; splits == 0: as the model says, see k_split()
  Codes codes = {};       // of rhs, whose numbers are rounded to rhs_dtype, which is that of lhs

  Layout layout() const { return static_cast<Layout>((lhs.transposed ? 2 : 0) + (rhs.transposed ? 1 : 0)); }
  bool empty() const { return batch == 0 || M == 0 || N == 0; }
};

inline constexpr int kWarpSize = 32;

struct Tile {
  int m, n, k;
  bool operator==(const Tile&) const = default;
};

struct DTypes {
  DType lhs, rhs, out;
  bool operator==(const DTypes&) const = default;
};

// What a kernel is and what it can take. Derived from its Config by describe<Config>() (launch.cuh).
struct KernelInfo {
  std::string_view family;     // the rung of the ladder, e.g. "wmma_tiled"
  std::string_view config;     // one tile configuration of it, e.g. "128x128x64"
  std::string_view full_name;  // "family:config", the name that custom calls carry
  int min_sm, max_sm;          // first and last compute capability it runs on; max_sm == 0: no last one
  std::span<const DTypes> dtypes;
  std::array<bool, 4> layouts;  // indexed by Layout
  Tile cta_tile, warp_tile;
  int stages, threads, smem_bytes;
  bool tf32;            // rounds float32 operands to TF32 unless the precision is kHighest
  bool highest;         // multiplies float32 operands, or 8-bit floating-point ones, at precision kHighest, too
  bool split_k;         // may split K over several CTAs: k_split()
  bool stream_k;        // over all of them, too: streams_k()
  int cluster_ctas;     // CTAs that compute tiles below one another together; 1: each is by itself
  bool tma;             // takes operands at multiples of 16 bytes only, and sizes up to kMaxTmaSize
  bool fused_epilogue;  // applies alpha, bias and activation itself, to floating-point results
  int bits;             // of the codes of rhs; 0: takes no quantised rhs
  int group_multiple;   // takes groups of a multiple of so many rows, or of all rows
  int resident_ctas;    // that fit a multiprocessor, if the Config says so; else 1
  int shifted_ahead;    // k-tiles on their way where rows begin anywhere and are moved within shared memory; else 0
  int k_sharers;        // parts of a CTA that take k-tiles of the same columns in turns
  int tiles_at_once;    // k-tiles that a warp loads into registers before it multiplies the first of them
};

struct GemmArgs {
  Problem problem;
  const void* lhs = nullptr;
  const void* rhs = nullptr;
  const float* alpha = nullptr;  // on the device, like bias; nullptr for 1
  const void* bias = nullptr;
  DType bias_dtype = DType::kF32;
  int64_t bias_batch_stride = 0;  // in elements: 0 where the batch shares one, else N
  const void* scales = nullptr;   // of quantised rhs, like zeros, which are there unless they are Zeros::kMiddle
  const void* zeros = nullptr;
  void* out = nullptr;
  void* workspace = nullptr;  // kWorkspaceAlignment-aligned, workspace_bytes() long, contents undefined
  void* stream = nullptr;     // cudaStream_t
};

inline constexpr bool is_fp8(DType dtype) { return dtype == DType::kF8E4M3FN || dtype == DType::kF8E5M2; }

// Whether kernels add a bias of this dtype.
inline constexpr bool takes_bias(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

inline constexpr int64_t kWorkspaceAlignment = 256;
inline constexpr int kMaxSmemBytes = 227 * 1024;  // of one CTA, on the GPUs that have the most: max_smem_bytes()
inline constexpr int64_t kMaxTmaSize = 2147483647 - 255;  // coordinates are 32 bits; the last tile hangs over the edge
inline constexpr int64_t kMaxCtas = 2147483647;  // CUDA's limit of grid.x; every family puts all its tiles there

// What is copied into the workspace before a kernel reads it: how many operands, and what they take there.
struct Copies {
  int operands = 0;
  int64_t bytes = 0;

  Copies& operator+=(const Copies& other) {
    operands += other.operands;
    bytes += other.bytes;
    return *this;
  }
};

struct Kernel {
  KernelInfo info;
  // Enqueues the work on args.stream; returns "" or what went wrong. Called only if why_not() is "".
  std::string (*launch)(const GemmArgs& args);
  int64_t (*workspace_bytes)(const Problem& problem);
  Copies (*copies)(const Problem& problem) = nullptr;  // told by those that the models compare
};

// All kernels in ladder order, simplest first: of dense rhs, and of quantised rhs.
std::span<const Kernel* const> kernels();
std::span<const Kernel* const> mixed_kernels();

// By full name, of either; nullptr if there is none.
const Kernel* find(std::string_view full_name);

// The most shared memory that one CTA can have on a GPU of this compute capability times ten.
int max_smem_bytes(int sm);

// "" if the kernel can run the problem on a GPU of problem.sm, else a sentence with the values that forbid it.
std::string why_not(const Kernel& kernel, const Problem& problem);

// The kernel that the model in select.cc (of quantised rhs: select_mixed.cc) expects to be the fastest, among those of
// `family` if one is given; nullptr if none can run the problem.
const Kernel* select(const Problem& problem, std::string_view family = {});

// For how many multiprocessors the model plans.
int64_t planned_multiprocessors(int sm);

// What select() asks first: the place on the ladder of a kernel's rung, negative where it would only get in the way.
int rung(const Kernel& kernel, const Problem& problem);

// The model's estimate in microseconds of an H200: what select() minimises on a rung.
double estimated_cost(const Kernel& kernel, const Problem& problem);

// How K is split: as the problem asks, else as the model says. {0, 1} for a kernel without split_k. The model takes
// longer than other questions: who asks more than once puts the answer into the problem.
KSplit k_split(const KernelInfo& info, const Problem& problem);

// Whether the CTAs that share a tile's K are a cluster and add up their sums among themselves, which needs no second
// kernel. Larger clusters leave multiprocessors idle that are no whole cluster; where there are whole tiles for all,
// those of three do, too.
inline constexpr int kMostClusterSplits = 3;
inline bool reduces_in_cluster(const KernelInfo& info, const KSplit& split) {
  const int most = split.whole == 0 ? kMostClusterSplits : 2;
  return info.tma && info.cluster_ctas == 1 && split.splits > 1 && split.splits <= most;
}

// Of dense rhs.
inline constexpr bool takes_tiles(const KSplit& split) { return split.splits == 1 && split.whole > 0; }

// So many CTAs share a tile of quantised rhs at most, as a cluster: all GPUs with clusters take these.
inline constexpr int kMostMixedClusterSplits = 8;

// More are all CTAs that a kernel with stream_k runs as: together they have the K of all tiles but the first `whole`,
// laid end to end, in equal parts.
inline constexpr bool streams_k(const KSplit& split) { return split.splits > kMostMixedClusterSplits; }

// "float32 4096x4096x4096 NN batch 1": for messages.
std::string describe(const Problem& problem);

}  // namespace jaxgemm
