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
// Source: PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions"; the walk-through of mma.m16n8k16 with
// fragments "loaded by hand", here with the order of rows and of K as degrees of freedom.
#include <type_traits>

#include "launch.cuh"
#include "ptx/shared_storage.cuh"
#include "tile/fragment.cuh"
#include "tile/global_matrix.cuh"
#include "tile/mma_family.cuh"
#include "tile/padding.h"
#include "tile/scheduler.cuh"

namespace jaxgemm {
namespace {

constexpr int kWarpSize = 32;
constexpr int kVectorBytes = 16, kVectorWords = kVectorBytes / 4;
constexpr int kLanesAlongK = 4, kLanesAlongMn = kWarpSize / kLanesAlongK;

// A k-tile is a vector for each of the lanes along K.
template <int ELEMENT_BYTES, int CTA_M, int CTA_N, int WARP_M, int WARP_N, int CTAS>
struct TileConfig {
  static constexpr std::string_view kFamily = "mma";
  static constexpr auto kDTypes = kMmaDTypes<ELEMENT_BYTES>;
  static constexpr bool kTf32 = ELEMENT_BYTES == 4;
  static constexpr int kElementBytes = ELEMENT_BYTES, kVectorElems = kVectorBytes / ELEMENT_BYTES;
  static constexpr Tile kCtaTile = {CTA_M, CTA_N, kLanesAlongK * kVectorElems},
                        kWarpTile = {WARP_M, WARP_N, kCtaTile.k};
  static constexpr int kWarpsN = CTA_N / WARP_N;
  static constexpr int kStages = 1, kThreads = CTA_M / WARP_M * kWarpsN * kWarpSize, kCtas = CTAS;
  using SharedStorage = StagedSums<CTA_M, CTA_N>;  // when the K loop is over
};

struct Config64x64x32 : TileConfig<2, 64, 64, 32, 32, 4> {};
struct Config128x128x32 : TileConfig<2, 128, 128, 64, 64, 2> {};
struct Config64x64x16 : TileConfig<4, 64, 64, 32, 32, 3> {};
struct Config128x64x16 : TileConfig<4, 128, 64, 64, 32, 2> {};
struct Config64x64x64 : TileConfig<1, 64, 64, 32, 32, 4> {};
struct Config128x128x64 : TileConfig<1, 128, 128, 64, 64, 2> {};

// A lane's share of one operand's k-tile: kSlots rows of lhs or columns of rhs ("mn"), of each a vector along K.
template <class Element, int kMn, bool kMnContiguous>
class LaneBlock {
 public:
  static constexpr int kSlots = kMn / kLanesAlongMn;
  static constexpr int kElems = kVectorBytes / sizeof(Element);  // along K

  // vectors[slot][i]: register i along K.
  uint32_t words[kSlots][kVectorWords];

  // Which row (column) of the warp tile is the slot-th of lanes with this g.
  __host__ __device__ static constexpr int mn(int slot, int g) {
    return kMnContiguous ? kSlots * g + slot : kLanesAlongMn * slot + g;
  }

  // From g_tile on, where the warp's first row (column) lies, mn_left of them exist. `whole_vectors`: see below.
  __device__ LaneBlock(const Element* g_tile, int64_t ld, int64_t mn_left, bool whole_vectors)
      : first_mn_(mn(0, g())),
        mn_left_(mn_left < kMn ? static_cast<int>(mn_left) : kMn),
        whole_vectors_(whole_vectors),
        ld_(ld),
        g_next_(g_tile + (kMnContiguous ? t() * kElems * ld + first_mn_ : first_mn_ * ld + t() * kElems)) {}

  // Loads the share of the next k-tile, of which k_left elements exist. What lies outside the matrix reads as zero.
  __device__ void load(int64_t k_left) {
    k_left -= t() * kElems;
    const int k_inside = k_left < kElems ? static_cast<int>(k_left) : kElems;  // of this lane's; may be negative
    if (!whole_vectors_) {
      load_elements(k_inside);
    } else if constexpr (kMnContiguous) {
      load_along_mn(k_inside);
    } else {
      load_along_k(k_inside);
    }
    g_next_ += kMnContiguous ? kLanesAlongK * kElems * ld_ : kLanesAlongK * kElems;
  }

 private:
  using Bits =
      std::conditional_t<sizeof(Element) == 4, uint32_t, std::conditional_t<sizeof(Element) == 2, uint16_t, uint8_t>>;
  static constexpr int kElementsPerWord = 4 / sizeof(Element);

  __device__ static int g() { return static_cast<int>(threadIdx.x) % kWarpSize / kLanesAlongK; }
  __device__ static int t() { return static_cast<int>(threadIdx.x) % kLanesAlongK; }

  __device__ void load_along_k(int k_inside) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const bool inside = k_inside > 0 && mn(slot, 0) + first_mn_ < mn_left_;
      const uint4 vector =
          inside ? *reinterpret_cast<const uint4*>(g_next_ + mn(slot, 0) * ld_) : make_uint4(0, 0, 0, 0);
      words[slot][0] = vector.x;
      words[slot][1] = vector.y;
      words[slot][2] = vector.z;
      words[slot][3] = vector.w;
    }
  }

  // A run is what the lane has of one k: an element of each slot.
  struct alignas(sizeof(Element) * kSlots < kVectorBytes ? sizeof(Element) * kSlots : kVectorBytes) Run {
    uint32_t words[kSlots / kElementsPerWord];
  };

  __device__ void load_along_mn(int k_inside) {
    if (first_mn_ >= mn_left_) k_inside = 0;
    Run runs[kElems];
#pragma unroll
    for (int k = 0; k < kElems; ++k) runs[k] = k < k_inside ? *reinterpret_cast<const Run*>(g_next_ + k * ld_) : Run{};
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
#pragma unroll
      for (int i = 0; i < kVectorWords; ++i) words[slot][i] = gather(runs + i * kElementsPerWord, slot);
    }
  }

  // The slot's elements of kElementsPerWord runs.
  __device__ static uint32_t gather(const Run* runs, int slot) {
    const int word = slot / kElementsPerWord;
    if constexpr (sizeof(Element) == 4) {
      return runs[0].words[word];
    } else if constexpr (sizeof(Element) == 2) {
      return __byte_perm(runs[0].words[word], runs[1].words[word], slot % 2 == 0 ? 0x5410 : 0x7632);
    } else {
      // Two bytes of either run first; of these, what the slot's neighbour takes as well.
      const unsigned pairs = slot % 4 < 2 ? 0x5140 : 0x7362;
      const uint32_t low = __byte_perm(runs[0].words[word], runs[1].words[word], pairs);
      const uint32_t high = __byte_perm(runs[2].words[word], runs[3].words[word], pairs);
      return __byte_perm(low, high, slot % 2 == 0 ? 0x5410 : 0x7632);
    }
  }

  // Slow, hence small: one slot at a time, for which the others make room.
  __device__ void load_elements(int k_inside) {
    const Bits* g_slot = reinterpret_cast<const Bits*>(g_next_);
    const int64_t slot_stride = mn(1, 0) * (kMnContiguous ? 1 : ld_), k_stride = kMnContiguous ? ld_ : 1;
#pragma unroll 1
    for (int slot = 0; slot < kSlots; ++slot) {
      const int inside = first_mn_ + mn(slot, 0) < mn_left_ ? k_inside : 0;
#pragma unroll
      for (int i = 0; i < kVectorWords; ++i) {
        uint32_t word = 0;
#pragma unroll
        for (int e = 0; e < kElementsPerWord; ++e) {
          const int k = i * kElementsPerWord + e;
          const uint32_t bits = k < inside ? g_slot[k * k_stride] : Bits{0};
          word |= bits << e * 8 * static_cast<int>(sizeof(Element));
        }
#pragma unroll
        for (int other = 1; other < kSlots; ++other) words[other - 1][i] = words[other][i];
        words[kSlots - 1][i] = word;
      }
      g_slot += slot_stride;
    }
  }

  int first_mn_, mn_left_;
  bool whole_vectors_;
  int64_t ld_;
  const Element* g_next_;
};

// Whether vectors of an operand lie inside it or outside it and, where its first element is aligned, are aligned.
template <class Config>
bool made_of_vectors(const MatrixView& view) {
  return (view.transposed ? view.rows : view.cols) % Config::kVectorElems == 0 && view.ld % Config::kVectorElems == 0 &&
         view.batch_stride % Config::kVectorElems == 0;
}

template <class Config>
bool whole_vectors(const PaddableOperand& operand) {
  return reinterpret_cast<uintptr_t>(operand.data) % kVectorBytes == 0 && made_of_vectors<Config>(operand.view);
}

template <class Config, class Op, bool kLhsTransposed, bool kRhsTransposed>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtas)
    mma_kernel(GlobalMatrix<typename Op::Element, kLhsTransposed> g_lhs,
               GlobalMatrix<typename Op::Element, kRhsTransposed> g_rhs, bool lhs_whole_vectors, bool rhs_whole_vectors,
               Epilogue epilogue, FixOf<Op> fix, TileGrid grid, int64_t M, int64_t N, int64_t K) {
  using Element = typename Op::Element;
  using Accumulator = typename Op::Accumulator;
  constexpr Tile kWarp = Config::kWarpTile;
  constexpr int kFragmentsM = kWarp.m / fragment::kM, kFragmentsN = kWarp.n / fragment::kN;
  constexpr int kSteps = kWarp.k / Op::kK;
  static_assert(kSteps * Op::kK == kWarp.k);
  using LhsBlock = LaneBlock<Element, kWarp.m, kLhsTransposed>;
  using RhsBlock = LaneBlock<Element, kWarp.n, !kRhsTransposed>;

  const TileCoord tile = grid.tile(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp_row = warp / Config::kWarpsN * kWarp.m, warp_col = warp % Config::kWarpsN * kWarp.n;
  const int64_t row = tile.row + warp_row, col = tile.col + warp_col;
  LhsBlock lhs(g_lhs.at(tile.batch, row, 0), g_lhs.ld, M - row, lhs_whole_vectors);
  RhsBlock rhs(g_rhs.at(tile.batch, 0, col), g_rhs.ld, N - col, rhs_whole_vectors);

  Accumulator accumulators[kFragmentsM][kFragmentsN][4] = {};
  for (int64_t k = 0; k < K; k += kWarp.k) {
    lhs.load(K - k);
    rhs.load(K - k);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[kFragmentsM][4], b[kFragmentsN][2];
#pragma unroll
      for (int i = 0; i < kFragmentsM; ++i) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          constexpr auto at = [](int reg) { return fragment::a<Op::kElems>(0, reg * Op::kElems); };
          a[i][r] = lhs.words[2 * i + at(r).row / kLanesAlongMn][2 * step + at(r).col / (kLanesAlongK * Op::kElems)];
        }
      }
#pragma unroll
      for (int j = 0; j < kFragmentsN; ++j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) b[j][r] = rhs.words[j][2 * step + r];
      }
      Op::multiply(accumulators, a, b);
    }
  }

  auto& s_out = shared_storage<typename Config::SharedStorage>().of(Accumulator{});
#pragma unroll
  for (int i = 0; i < kFragmentsM; ++i) {
#pragma unroll
    for (int j = 0; j < kFragmentsN; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const fragment::Coord at = fragment::d(lane, e);
        const int m = LhsBlock::mn(2 * i + at.row / kLanesAlongMn, at.row % kLanesAlongMn);
        const int n = RhsBlock::mn(j, at.col);
        s_out.elements[(warp_row + m) * s_out.kStride + warp_col + n] = accumulators[i][j][e];
      }
    }
  }
  __syncthreads();
  write_tile<Config::kThreads>(s_out, epilogue, fix, tile, M, N);
}

template <class Config>
int64_t workspace_bytes(const Problem& p) {
  return Padding(p, Config::kCtaTile, made_of_vectors<Config>).workspace_bytes(p);
}

template <class Config>
std::string launch(const GemmArgs& args) {
  const Problem& p = args.problem;
  PaddableOperand lhs = {args.lhs, p.lhs}, rhs = {args.rhs, p.rhs};
  char* workspace = static_cast<char*>(args.workspace);
  const Padding padding(p, Config::kCtaTile, made_of_vectors<Config>);
  if (std::string error = padding.apply(lhs, rhs, workspace, args); !error.empty()) return error;

  const TileGrid grid(Config::kCtaTile, p.M, p.N);
  return dispatch_op<Config::kElementBytes>(p, [&]<class Op>() {
    return dispatch_layout(p.layout(), [&]<bool kLhsTransposed, bool kRhsTransposed>() {
      return launch_kernel(mma_kernel<Config, Op, kLhsTransposed, kRhsTransposed>, grid.ctas(p.batch), Config::kThreads,
                           describe<Config>().smem_bytes, args.stream,
                           GlobalMatrix<typename Op::Element, kLhsTransposed>(lhs.data, lhs.view),
                           GlobalMatrix<typename Op::Element, kRhsTransposed>(rhs.data, rhs.view),
                           whole_vectors<Config>(lhs), whole_vectors<Config>(rhs), Epilogue(args), FixOf<Op>(args),
                           grid, p.M, p.N, p.K);
    });
  });
}

template <class Config>
constexpr Kernel kKernel = {describe<Config>(), &launch<Config>, &workspace_bytes<Config>};

}  // namespace
}  // namespace jaxgemm

JAXGEMM_FAMILY(mma, &kKernel<Config64x64x32>, &kKernel<Config128x128x32>, &kKernel<Config64x64x16>,
               &kKernel<Config128x64x16>, &kKernel<Config64x64x64>, &kKernel<Config128x128x64>)
