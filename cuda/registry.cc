// The list of families, and what can be said about any kernel without launching it.
#include <algorithm>
#include <vector>

#include "gemm.h"
#include "select_mixed.h"

// Ladder order. A new family is one .cu file under kernels/ and one row here.
#define JAXGEMM_FAMILIES(X) \
  X(naive)                  \
  X(smem_tiled)             \
  X(register_tiled)         \
  X(wmma_naive)             \
  X(wmma_tiled)             \
  X(mma)                    \
  X(mma_ldmatrix)           \
  X(mma_multistage)         \
  X(wgmma)                  \
  X(gemv)
// Of quantised rhs.
#define JAXGEMM_MIXED_FAMILIES(X) \
  X(int4_mma)                     \
  X(int4_tma)                     \
  X(int4_wgmma)

namespace jaxgemm {

#define JAXGEMM_DECLARE(family) extern const std::span<const Kernel* const> family##_kernels;
JAXGEMM_FAMILIES(JAXGEMM_DECLARE)
JAXGEMM_MIXED_FAMILIES(JAXGEMM_DECLARE)
#undef JAXGEMM_DECLARE

#define JAXGEMM_APPEND(family) rows.insert(rows.end(), family##_kernels.begin(), family##_kernels.end());
std::span<const Kernel* const> kernels() {
  static const std::vector<const Kernel*> all = [] {
    std::vector<const Kernel*> rows;
    JAXGEMM_FAMILIES(JAXGEMM_APPEND)
    return rows;
  }();
  return all;
}

std::span<const Kernel* const> mixed_kernels() {
  static const std::vector<const Kernel*> all = [] {
    std::vector<const Kernel*> rows;
    JAXGEMM_MIXED_FAMILIES(JAXGEMM_APPEND)
    return rows;
  }();
  return all;
}
#undef JAXGEMM_APPEND

const Kernel* find(std::string_view full_name) {
  for (const auto& rows : {kernels(), mixed_kernels()}) {
    for (const Kernel* kernel : rows) {
      if (kernel->info.full_name == full_name) return kernel;
    }
  }
  return nullptr;
}

#define JAXGEMM_NAME_CASE(id, text, ...) \
  case Enum::k##id: return text;

std::string_view name(DType dtype) {
  using Enum = DType;
  switch (dtype) { JAXGEMM_DTYPES(JAXGEMM_NAME_CASE) }
  return "?";
}

std::string_view name(Activation activation) {
  using Enum = Activation;
  switch (activation) { JAXGEMM_ACTIVATIONS(JAXGEMM_NAME_CASE) }
  return "?";
}

std::string_view name(Precision precision) {
  using Enum = Precision;
  switch (precision) { JAXGEMM_PRECISIONS(JAXGEMM_NAME_CASE) }
  return "?";
}

std::string_view name(Zeros zeros) {
  using Enum = Zeros;
  switch (zeros) { JAXGEMM_ZEROS(JAXGEMM_NAME_CASE) }
  return "?";
}
#undef JAXGEMM_NAME_CASE

int64_t size_bytes(DType dtype) {
  switch (dtype) {
#define JAXGEMM_SIZE_CASE(id, text, bytes) \
  case DType::k##id: return bytes;
    JAXGEMM_DTYPES(JAXGEMM_SIZE_CASE)
#undef JAXGEMM_SIZE_CASE
  }
  return 0;
}

namespace {

std::string describe(const DTypes& dtypes) {
  return std::string(name(dtypes.lhs)) + " x " + std::string(name(dtypes.rhs)) + " -> " + std::string(name(dtypes.out));
}

int64_t tiles(int64_t size, int tile) { return (size + tile - 1) / tile; }

// Of a split of K that the problem asks for; `all`: tiles of out, of clusters' tiles where CTAs form clusters.
std::string why_not_split(const KernelInfo& info, const Problem& p, int64_t all) {
  const auto [whole, splits] = p.split;
  if (whole == 0 && (splits == 0 || splits == 1)) return {};
  if (takes_tiles(p.split)) {
    if (!info.tma || info.bits != 0) return "has no tiles that CTAs take";
    return whole < all ? "" : "has " + std::to_string(all) + " tiles, none after the first " + std::to_string(whole);
  }
  if (!info.split_k) return "does not split K";
  if (whole != 0 && !info.tma) return "splits K of all tiles or of none, not of those after " + std::to_string(whole);
  const int64_t k_tiles = tiles(p.K, info.cta_tile.k);
  const int64_t most =
      info.stream_k && streams_k(p.split) ? streamed_k_tiles(all, whole, k_tiles) : std::min(k_tiles, kMaxCtas / all);
  if (whole < 0 || whole >= all || splits < 2 || splits > most) {
    return "cannot split K=" + std::to_string(p.K) + " of the tiles after the first " + std::to_string(whole) + " of " +
           std::to_string(all) + " over " + std::to_string(splits) + " CTAs";
  }
  return {};
}

std::string describe(const Codes& codes) {
  return codes.bits == 0 ? "no codes"
                         : std::to_string(codes.bits) + "-bit codes in groups of " + std::to_string(codes.group_size) +
                               " with " + std::string(name(codes.zeros)) + " zero points and " +
                               std::string(name(codes.scale_dtype)) + " scales";
}

// Of a quantised rhs, or a dense one.
std::string why_not_codes(const KernelInfo& info, const Problem& p) {
  const Codes& codes = p.codes;
  if (codes.bits != info.bits) {
    return info.bits == 0
               ? "takes no quantised rhs, this one has " + describe(codes)
               : "takes an rhs of " + std::to_string(info.bits) + "-bit codes only, this one has " + describe(codes);
  }
  if (codes.bits == 0) return {};
  if (codes.group_size < p.K && codes.group_size % info.group_multiple != 0) {
    return "takes groups of all rows or of a multiple of " + std::to_string(info.group_multiple) + " rows, not of " +
           std::to_string(codes.group_size);
  }
  if (p.K > kMaxTmaSize || p.N > kMaxTmaSize) return "reaches K and N up to " + std::to_string(kMaxTmaSize) + " only";
  if (info.tma) {
    // Coordinates of codes count words, of which 16 columns have two for each row.
    constexpr int64_t kMostK = kMaxTmaSize / 2;
    if (p.K > kMostK) return "reaches K up to " + std::to_string(kMostK) + " only, not " + std::to_string(p.K);
    // A k-tile has whole groups, or is part of one: TMA brings the parameters of groups that follow each other.
    const int k_tile = info.cta_tile.k;
    if (codes.group_size < p.K && codes.group_size % k_tile != 0 && k_tile % codes.group_size != 0) {
      return "takes groups of all rows, of a multiple of " + std::to_string(k_tile) +
             " rows or of a part of those, not of " + std::to_string(codes.group_size);
    }
    // Rows of scales and zero points are copied by TMA, which takes multiples of 16 bytes.
    const int multiple = codes.zeros == Zeros::kMiddle ? 8 : 16;
    if (p.N % multiple != 0) {
      return "takes N of a multiple of " + std::to_string(multiple) + " here, not " + std::to_string(p.N);
    }
    if (codes.scale_dtype == DType::kF32) return "takes scales of 16 bits";
    if (const int64_t most = info.stream_k ? planned_multiprocessors(p.sm) : kMostMixedClusterSplits;
        p.split.splits > most) {
      return "splits K over " + std::to_string(most) + " CTAs at most, not " + std::to_string(p.split.splits);
    }
  }
  if (p.split.whole != 0 && !streams_k(p.split)) return "splits K of all tiles or of none";
  if (codes.zeros == Zeros::kFloat) return "takes integer zero points, or none";
  if (!takes_bias(codes.scale_dtype)) return "takes no scales of " + std::string(name(codes.scale_dtype));
  return {};
}

}  // namespace

std::string describe(const Problem& p) {
  return describe(DTypes{p.lhs_dtype, p.rhs_dtype, p.out_dtype}) + ", M=" + std::to_string(p.M) +
         " N=" + std::to_string(p.N) + " K=" + std::to_string(p.K) + " batch=" + std::to_string(p.batch) + " " +
         (p.codes.bits == 0 ? std::string(kLayoutNames[static_cast<int>(p.layout())]) : describe(p.codes));
}

// CUDA C++ programming guide, "Technical Specifications per Compute Capability": maximum amount of shared memory per
// thread block. What is not listed here is given the least that any GPU since 8.0 has.
int max_smem_bytes(int sm) {
  switch (sm) {
    case 80:
    case 87: return 163 * 1024;
    case 90:
    case 100:
    case 103:
    case 110: return kMaxSmemBytes;
    default: return 99 * 1024;
  }
}

std::string why_not(const Kernel& kernel, const Problem& p) {
  const KernelInfo& info = kernel.info;
  if (p.sm < info.min_sm || (info.max_sm != 0 && p.sm > info.max_sm)) {
    return "needs a GPU of sm_" + std::to_string(info.min_sm) +
           (info.max_sm == 0 ? " or newer" : " to sm_" + std::to_string(info.max_sm)) + ", this one is sm_" +
           std::to_string(p.sm);
  }
  if (info.smem_bytes > max_smem_bytes(p.sm)) {
    return "needs " + std::to_string(info.smem_bytes) + " bytes of shared memory per CTA, sm_" + std::to_string(p.sm) +
           " has " + std::to_string(max_smem_bytes(p.sm));
  }
  const DTypes wanted = {p.lhs_dtype, p.rhs_dtype, p.out_dtype};
  if (std::ranges::find(info.dtypes, wanted) == info.dtypes.end()) {
    std::string taken;
    for (const DTypes& dtypes : info.dtypes) taken += (taken.empty() ? "" : ", ") + describe(dtypes);
    return "does not multiply " + describe(wanted) + "; it takes " + taken;
  }
  if (p.lhs_dtype == DType::kF32 && p.precision == Precision::kHighest && !info.highest) {
    return "rounds float32 operands to TF32, which precision " + std::string(name(p.precision)) + " forbids";
  }
  if (is_fp8(p.lhs_dtype) && p.precision == Precision::kHighest && !info.highest) {
    return "leaves all of a sum of 8-bit floating-point products to the tensor cores, which precision " +
           std::string(name(p.precision)) + " forbids";
  }
  if (std::string why = why_not_codes(info, p); !why.empty()) return why;
  if (!info.layouts[static_cast<int>(p.layout())]) {
    return "does not take layout " + std::string(kLayoutNames[static_cast<int>(p.layout())]);
  }
  if (p.has_alpha || p.has_bias || p.activation != Activation::kNone) {
    if (!info.fused_epilogue) return "does not fuse alpha, bias and activation";
    if (p.out_dtype == DType::kS32) return "fuses alpha, bias and activation with floating-point results only";
  }
  if (!p.empty()) {
    if (const int64_t largest = std::max({p.M, p.N, p.K, p.batch}); info.tma && largest > kMaxTmaSize) {
      return "reaches sizes up to " + std::to_string(kMaxTmaSize) + " only, not " + std::to_string(largest);
    }
    // Divisions, so that no product of sizes can overflow.
    const int64_t tiles_m = tiles(p.M, info.cta_tile.m), tiles_n = tiles(p.N, info.cta_tile.n);
    if (tiles_m > kMaxCtas / tiles_n || p.batch > kMaxCtas / (tiles_m * tiles_n)) {
      return "M=" + std::to_string(p.M) + " N=" + std::to_string(p.N) + " batch=" + std::to_string(p.batch) +
             " is more than " + std::to_string(kMaxCtas) + " CTA tiles of " + std::to_string(info.cta_tile.m) + "x" +
             std::to_string(info.cta_tile.n);
    }
    return why_not_split(info, p, tiles(p.M, info.cta_tile.m * info.cluster_ctas) * tiles_n * p.batch);
  }
  return {};
}

}  // namespace jaxgemm
