// mma: PTX's own multiply-add of a warp, mma.sync, with operands loaded straight from global memory into its registers.
//
// What is new against wmma: what a lane's registers hold is documented (tile/fragment.cuh), so that a warp can load and
// store them as it likes. Lane 4 * g + t holds, of a 16 x K fragment of lhs, elements of rows g and g + 8, and of a K x
// 8 fragment of rhs, elements of column g. But which row of lhs is called g is the kernel's to choose, and so is the
// order of K, if it is the same for both operands. Here the elements of a lane are neighbours in memory:
//
//   - A lane's share of K is one 16-byte vector, t-th of four. Its four registers are those of two steps of mma.sync.
//   - Along K, a lane loads such a vector of each of its rows. Along M or N, its rows (8 in a warp tile of 64) are
//     neighbours too, and it loads vectors of rows, one for each k, which it turns around with byte permutations.
//
// There is no shared memory but for the way out, and no barrier in the loop: warps that need the same operands find
// them in the L1 cache.
//
// Tiles `_at_once` and of 32 x 32 are for what takes no longer than waiting for memory once or twice: a lane has
// several k-tiles on their way before it multiplies the first, rows that begin anywhere included, and its sums go from
// registers to out (epilogue/lane_out.cuh).
//
// Source: PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions"; the walk-through of mma.m16n8k16 with
// fragments "loaded by hand", here with the order of rows and of K as degrees of freedom.
#include <type_traits>

#include "epilogue/lane_out.cuh"
#include "launch.cuh"
#include "ptx/pin.cuh"
#include "ptx/shared_storage.cuh"
#include "tile/at_once.h"
#include "tile/fragment.cuh"
#include "tile/global_matrix.cuh"
#include "tile/mma_family.cuh"
#include "tile/padding.h"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

constexpr int kVectorWords = kVectorBytes / 4;
constexpr int kLanesAlongK = 4, kLanesAlongMn = kWarpSize / kLanesAlongK;

// Rows of out of a tile, end to end, of any dtype.
template <int kElements>
struct RunStorage {
  alignas(kVectorBytes) char bytes[OutRun<float>::bytes(kElements)];
};

// A k-tile is a vector for each of the lanes along K. AT_ONCE: how many of them a lane loads before it multiplies.
template <int ELEMENT_BYTES, int CTA_M, int CTA_N, int WARP_M, int WARP_N, int CTAS, int AT_ONCE = 1>
struct TileConfig {
  static constexpr std::string_view kFamily = "mma";
  static constexpr auto kDTypes = kMmaDTypes<ELEMENT_BYTES>;
  static constexpr bool kTf32 = ELEMENT_BYTES == 4;
  static constexpr int kElementBytes = ELEMENT_BYTES, kVectorElems = kVectorBytes / ELEMENT_BYTES;
  static constexpr Tile kCtaTile = {CTA_M, CTA_N, kLanesAlongK * kVectorElems},
                        kWarpTile = {WARP_M, WARP_N, kCtaTile.k};
  static constexpr int kWarpsN = CTA_N / WARP_N;
  static constexpr int kStages = 1, kThreads = CTA_M / WARP_M * kWarpsN * kWarpSize, kCtas = CTAS;
  static constexpr int kTilesAtOnce = AT_ONCE;
  // When the K loop is over.
  using SharedStorage = std::conditional_t<AT_ONCE == 1, StagedSums<CTA_M, CTA_N>, RunStorage<CTA_M * CTA_N>>;
};

struct Config32x32x32 : TileConfig<2, 32, 32, 16, 16, 4, 4> {};
struct Config64x64x32 : TileConfig<2, 64, 64, 32, 32, 4> {};
struct Config128x64x32 : TileConfig<2, 128, 64, 64, 32, 3> {};
struct Config128x128x32 : TileConfig<2, 128, 128, 64, 64, 2> {};
struct Config32x32x16 : TileConfig<4, 32, 32, 16, 16, 4, 4> {};
struct Config64x64x16 : TileConfig<4, 64, 64, 32, 32, 3> {};
struct Config128x64x16 : TileConfig<4, 128, 64, 64, 32, 2> {};
struct Config64x64x32_at_once : TileConfig<2, 64, 64, 32, 32, 4, 2> {
  static constexpr std::string_view kSuffix = "_at_once";
};
struct Config64x64x16_at_once : TileConfig<4, 64, 64, 32, 32, 3, 2> {
  static constexpr std::string_view kSuffix = "_at_once";
};
struct Config64x64x64 : TileConfig<1, 64, 64, 32, 32, 4> {};
struct Config128x128x64 : TileConfig<1, 128, 128, 64, 64, 2> {};

// What a lane loads of an operand along M or N: of kVectorBytes along K, one run of kSlots neighbours for each k. It
// takes one vector, which may be a narrow one, or two.
template <class Element, int kSlots>
struct Runs {
  static constexpr int kElems = kVectorBytes / sizeof(Element), kElemsPerWord = 4 / sizeof(Element);
  static constexpr int kVectorElems = kElems < kSlots ? kElems : kSlots, kVectors = kSlots / kVectorElems;
  struct alignas(sizeof(Element) * kVectorElems) Vector {
    uint32_t words[kVectorElems / kElemsPerWord];
  };
  Vector vectors[kElems][kVectors];

  __device__ uint32_t word(int k, int slot) const {
    return vectors[k][slot / kVectorElems].words[slot % kVectorElems / kElemsPerWord];
  }

  // The slot's elements from k on that make up a word.
  __device__ uint32_t along_k(int k, int slot) const {
    if constexpr (sizeof(Element) == 4) {
      return word(k, slot);
    } else if constexpr (sizeof(Element) == 2) {
      return __byte_perm(word(k, slot), word(k + 1, slot), slot % 2 == 0 ? 0x5410 : 0x7632);
    } else {
      // The elements of two slots first, which the other of them takes as well.
      const unsigned two_slots = slot % 4 < 2 ? 0x5140 : 0x7362;
      const uint32_t low = __byte_perm(word(k, slot), word(k + 1, slot), two_slots);
      const uint32_t high = __byte_perm(word(k + 2, slot), word(k + 3, slot), two_slots);
      return __byte_perm(low, high, slot % 2 == 0 ? 0x5410 : 0x7632);
    }
  }
};

// Loads a lane's share of one operand's k-tiles: kSlots rows of lhs or columns of rhs ("mn"), of each a vector along K.
template <class Element, int kMn, bool kMnContiguous>
class LaneBlock {
 public:
  static constexpr int kSlots = kMn / kLanesAlongMn;
  static constexpr int kElems = kVectorBytes / sizeof(Element), kElemsPerWord = 4 / sizeof(Element);

  using Words = uint32_t[kSlots][kVectorWords];  // of a k-tile

  // How rows (columns) are dealt to the lanes: along M or N, a lane's are neighbours.
  static constexpr int kGroup = kMnContiguous ? kSlots : 1;
  __host__ __device__ static constexpr int mn(int slot, int g) { return fragment::dealt<kGroup>(slot, g); }

  // From g_tile on, where the warp's first row (column) lies, mn_left of them exist: none, if it is negative.
  __device__ LaneBlock(const Element* g_tile, int64_t ld, int64_t mn_left, int lane)
      : mn_left_((mn_left < kMn ? static_cast<int>(mn_left) : kMn) - mn(0, lane / kLanesAlongK)),
        k_(lane % kLanesAlongK * kElems),
        ld_(ld),
        g_next_(g_tile +
                (kMnContiguous ? k_ * ld + mn(0, lane / kLanesAlongK) : mn(0, lane / kLanesAlongK) * ld + k_)) {}

  // Loads the share of the next k-tile, which is whole, from an operand that is made of vectors. Of rows (columns) that
  // do not exist it makes zeros, or, along M or N, copies of others, whose sums nobody writes either: a branch around
  // the loads of one operand would make them wait for those of the other.
  __device__ void load_vectors(Words& words) {
    if constexpr (kMnContiguous) {
      using Along = Runs<Element, kSlots>;
      Along runs;
#pragma unroll
      for (int i = 0; i < Along::kVectors; ++i) {
        const int first = i * Along::kVectorElems, last = (mn_left_ - 1) & -Along::kVectorElems;
        const Element* g_vectors = g_next_ + (first < last ? first : last);
#pragma unroll
        for (int k = 0; k < kElems; ++k) {
          runs.vectors[k][i] = *reinterpret_cast<const typename Along::Vector*>(g_vectors + k * ld_);
        }
      }
      turn_around(words, runs);
    } else {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        load_vector(words[slot], g_next_ + mn(slot, 0) * ld_, mn(slot, 0) < mn_left_);
      }
    }
    next_k_tile();
  }

  // The same for any operand and for a k-tile of which k_left elements along K exist: element by element, zeros where
  // there are none. Slow, hence small: the slots move up to make room for the next.
  __device__ void load_elements(Words& words, int64_t k_left) {
    const int k_inside = k_left < kLanesAlongK * kElems ? static_cast<int>(k_left) - k_ : kElems;
    const Bits* g_slot = reinterpret_cast<const Bits*>(g_next_);
#pragma unroll 1
    for (int slot = 0; slot < kSlots; ++slot) {
      const int inside = mn(slot, 0) < mn_left_ ? k_inside : 0;
#pragma unroll
      for (int i = 0; i < kVectorWords; ++i) {
        uint32_t word = 0;
#pragma unroll
        for (int e = 0; e < kElemsPerWord; ++e) {
          const int k = i * kElemsPerWord + e;
          const uint32_t bits = k < inside ? g_slot[kMnContiguous ? k * ld_ : k] : Bits{0};
          word |= bits << e * 8 * static_cast<int>(sizeof(Element));
        }
#pragma unroll
        for (int other = 1; other < kSlots; ++other) words[other - 1][i] = words[other][i];
        words[kSlots - 1][i] = word;
      }
      g_slot += kMnContiguous ? 1 : kLanesAlongMn * ld_;
    }
    next_k_tile();
  }

  // The same, fast for few slots: of vectors or elements, and whether or not any of the k-tile exists. Nothing is
  // waited for between the loads.
  template <bool kVectors>
  __device__ void load_at_once(Words& words, int k_left) {
    const int k_inside = k_left - k_;
    if constexpr (kVectors && kMnContiguous) {
      using Along = Runs<Element, kSlots>;
      static_assert(Along::kVectors == 1);
      Along runs = {};
      const Element* g_vector = g_next_ + (mn_left_ > 0 ? 0 : (mn_left_ - 1) & -Along::kVectorElems);
#pragma unroll
      for (int k = 0; k < kElems; ++k) {
        if (k < k_inside) runs.vectors[k][0] = *reinterpret_cast<const typename Along::Vector*>(g_vector + k * ld_);
      }
      turn_around(words, runs);
    } else {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int inside = mn(slot, 0) < mn_left_ ? k_inside : 0;
        const Element* g_slot = g_next_ + (kMnContiguous ? mn(slot, 0) : mn(slot, 0) * ld_);
        if constexpr (kVectors) {
          load_vector(words[slot], g_slot, inside > 0);
        } else {
          const Bits* g_bits = reinterpret_cast<const Bits*>(g_slot);
          Bits bits[kElems] = {};
#pragma unroll
          for (int k = 0; k < kElems; ++k) {
            if (k < inside) bits[k] = g_bits[kMnContiguous ? k * ld_ : k];
          }
#pragma unroll
          for (int i = 0; i < kVectorWords; ++i) {
            words[slot][i] = 0;
#pragma unroll
            for (int e = 0; e < kElemsPerWord; ++e) {
              words[slot][i] |= uint32_t{bits[i * kElemsPerWord + e]} << e * 8 * static_cast<int>(sizeof(Element));
            }
          }
        }
      }
    }
    next_k_tile();
  }

 private:
  using Bits =
      std::conditional_t<sizeof(Element) == 4, uint32_t, std::conditional_t<sizeof(Element) == 2, uint16_t, uint8_t>>;

  // Zeros where there is none.
  __device__ static void load_vector(uint32_t (&words)[kVectorWords], const Element* g_vector, bool exists) {
    uint4 vector = {};
    if (exists) vector = *reinterpret_cast<const uint4*>(g_vector);
    words[0] = vector.x;
    words[1] = vector.y;
    words[2] = vector.z;
    words[3] = vector.w;
  }

  __device__ static void turn_around(Words& words, const Runs<Element, kSlots>& runs) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
#pragma unroll
      for (int i = 0; i < kVectorWords; ++i) words[slot][i] = runs.along_k(i * kElemsPerWord, slot);
    }
  }

  __device__ void next_k_tile() { g_next_ += kLanesAlongK * kElems * (kMnContiguous ? ld_ : 1); }

  int mn_left_;  // from the lane's first slot on
  int k_;        // the lane's first in a k-tile
  int64_t ld_;
  const Element* g_next_;
};

template <class Config, class Op>
using AccumulatorsOf =
    typename Op::Accumulator[Config::kWarpTile.m / fragment::kM][Config::kWarpTile.n / fragment::kN][4];

// Adds the products of a k-tile.
template <class Config, class Op, class LhsWords, class RhsWords>
__device__ void multiply_k_tile(AccumulatorsOf<Config, Op>& accumulators, const LhsWords& lhs, const RhsWords& rhs) {
  constexpr int kFragmentsM = Config::kWarpTile.m / fragment::kM, kFragmentsN = Config::kWarpTile.n / fragment::kN;
  accumulate<Op>(accumulators, [&](AccumulatorsOf<Config, Op>& sums) {
#pragma unroll
    for (int step = 0; step < Config::kWarpTile.k / Op::kK; ++step) {
      // a[0], a[1]: rows g and g + 8, first half of the step's K; a[2], a[3]: the second half. b likewise.
      uint32_t a[kFragmentsM][4], b[kFragmentsN][2];
#pragma unroll
      for (int i = 0; i < kFragmentsM; ++i) {
#pragma unroll
        for (int r = 0; r < 4; ++r) a[i][r] = lhs[2 * i + r % 2][2 * step + r / 2];
      }
#pragma unroll
      for (int j = 0; j < kFragmentsN; ++j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) b[j][r] = rhs[j][2 * step + r];
      }
      multiply<Op>(sums, a, b);
    }
  });
}

// The whole K loop, kAtOnce k-tiles loaded before the first of them is multiplied.
template <class Config, class Op, int kAtOnce, bool kVectors, class LhsBlock, class RhsBlock>
__device__ void multiply_at_once(AccumulatorsOf<Config, Op>& accumulators, LhsBlock& lhs, RhsBlock& rhs, int64_t K) {
  constexpr int kTile = Config::kCtaTile.k;
#pragma unroll 1
  for (int64_t k = 0; k < K; k += kAtOnce * kTile) {
    const int k_left = K - k < kAtOnce * kTile ? static_cast<int>(K - k) : kAtOnce * kTile;
    typename LhsBlock::Words lhs_words[kAtOnce];
    typename RhsBlock::Words rhs_words[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      lhs.template load_at_once<kVectors>(lhs_words[i], k_left - i * kTile);
      rhs.template load_at_once<kVectors>(rhs_words[i], k_left - i * kTile);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i * kTile < k_left) multiply_k_tile<Config, Op>(accumulators, lhs_words[i], rhs_words[i]);
    }
  }
}

template <class Config, class Op, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtas)
    mma_kernel(GlobalMatrix<typename Op::Element, kLhsTransposed> g_lhs,
               GlobalMatrix<typename Op::Element, kRhsTransposed> g_rhs, bool whole_vectors, Epilogue epilogue,
               FixOf<Op> fix, TileGrid grid, int64_t M, int64_t N, int64_t K) {
  constexpr Tile kWarp = Config::kWarpTile;
  using LhsBlock = LaneBlock<typename Op::Element, Config::kWarpTile.m, kLhsTransposed>;
  using RhsBlock = LaneBlock<typename Op::Element, Config::kWarpTile.n, !kRhsTransposed>;

  const TileCoord tile = grid.tile(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp_row = warp / Config::kWarpsN * kWarp.m, warp_col = warp % Config::kWarpsN * kWarp.n;
  const int64_t row = tile.row + warp_row, col = tile.col + warp_col;
  LhsBlock lhs(g_lhs.at(tile.batch, row, 0), g_lhs.ld, M - row, lane);
  RhsBlock rhs(g_rhs.at(tile.batch, 0, col), g_rhs.ld, N - col, lane);

  AccumulatorsOf<Config, Op> accumulators = {};
  if constexpr (Config::kTilesAtOnce > 1) {
    constexpr int kVectors = kLoadedAtOnce < Config::kTilesAtOnce, !kLhsTransposed && kRhsTransposed > ;
    constexpr int kElements = kLoadedAtOnce<Config::kTilesAtOnce, false>;
    if (whole_vectors) {
      multiply_at_once<Config, Op, kVectors, true>(accumulators, lhs, rhs, K);
    } else {
      multiply_at_once<Config, Op, kElements, false>(accumulators, lhs, rhs, K);
    }
    int block[] = {static_cast<int>(blockIdx.x)};  // what follows from it is computed anew, and held in no register
    ptx::pin_registers(block);
    write_lanes<Op, Config::kCtaTile, Config::kThreads, LhsBlock::kGroup, RhsBlock::kGroup>(
        accumulators, shared_storage<typename Config::SharedStorage>().bytes, epilogue, fix, grid.tile(block[0]),
        warp_row, warp_col, lane, M, N);
  } else {
    typename LhsBlock::Words lhs_words;
    typename RhsBlock::Words rhs_words;
    int64_t k = 0;
    if (whole_vectors) {
#pragma unroll 1
      for (; k + kWarp.k <= K; k += kWarp.k) {
        lhs.load_vectors(lhs_words);
        rhs.load_vectors(rhs_words);
        multiply_k_tile<Config, Op>(accumulators, lhs_words, rhs_words);
      }
    }
#pragma unroll 1
    for (; k < K; k += kWarp.k) {
      lhs.load_elements(lhs_words, K - k);
      rhs.load_elements(rhs_words, K - k);
      multiply_k_tile<Config, Op>(accumulators, lhs_words, rhs_words);
    }

    auto& s_out = shared_storage<typename Config::SharedStorage>().of(typename Op::Accumulator{});
    const RowPhases phases(epilogue, tile);
    s_out.template store<LhsBlock::kGroup, RhsBlock::kGroup>(accumulators, warp_row, warp_col, phases);
    __syncthreads();
    write_tile<Op, Config::kThreads>(s_out, phases, epilogue, fix, tile, M, N);
  }
}

template <class Config>
Padding padding_of(const Problem& p) {
  if (Config::kTilesAtOnce > 1 && !copies_pay(p)) return {};
  return whole_vector_padding(p, Config::kCtaTile);
}

template <class Config>
int64_t workspace_bytes(const Problem& p) {
  return padding_of<Config>(p).workspace_bytes(p);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  const Problem& p = args.problem;
  PaddableOperand lhs = {args.lhs, p.lhs}, rhs = {args.rhs, p.rhs};
  char* workspace = static_cast<char*>(args.workspace);
  if (std::string error = padding_of<Config>(p).apply(lhs, rhs, workspace, args); !error.empty()) return error;

  const TileGrid grid(Config::kCtaTile, p.M, p.N);
  return dispatch_op<Config::kElementBytes>(p, [&]<class Op>() {
    return dispatch_layout(p.layout(), [&]<bool kLhsTransposed, bool kRhsTransposed>() {
      return launch_kernel(mma_kernel<Config, Op, kLhsTransposed, kRhsTransposed>, grid.ctas(p.batch), Config::kThreads,
                           describe<Config>().smem_bytes, args.stream,
                           GlobalMatrix<typename Op::Element, kLhsTransposed>(lhs.data, lhs.view),
                           GlobalMatrix<typename Op::Element, kRhsTransposed>(rhs.data, rhs.view),
                           lhs.whole_vectors(p.lhs_dtype) && rhs.whole_vectors(p.rhs_dtype), Epilogue(args),
                           FixOf<Op>(args), grid, p.M, p.N, p.K);
    });
  });
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes<Config>};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(mma, &kKernel<Config64x64x32>, &kKernel<Config128x64x32>, &kKernel<Config128x128x32>,
               &kKernel<Config64x64x16>, &kKernel<Config128x64x16>, &kKernel<Config64x64x64>,
               &kKernel<Config128x128x64>, &kKernel<Config32x32x32>, &kKernel<Config64x64x32_at_once>,
               &kKernel<Config32x32x16>, &kKernel<Config64x64x16_at_once>)
