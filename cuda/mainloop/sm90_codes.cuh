// The K loop of 4-bit weights on wgmma: a warpgroup makes A's fragments of packed codes, as its tensor cores multiply
// the ones before, by tokens that TMA brought to shared memory.
#pragma once

#include "ptx/address.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pin.cuh"
#include "ptx/wgmma.cuh"
#include "select_mixed.h"
#include "tile/packed.cuh"

namespace jaxgemm::sm90 {

// Where a walk round the ring of stages is.
struct CodesRing {
  int stage = 0;
  uint32_t parity = 0;

  template <int kStep = 1>
  __device__ void advance(int stages) {
    const bool ends = stage + kStep >= stages;
    stage += ends ? kStep - stages : kStep;
    parity ^= ends ? 1u : 0u;
  }
  __device__ void skip(int k_tiles, int stages) {
    parity ^= static_cast<uint32_t>((stage + k_tiles) / stages) & 1u;
    stage = (stage + k_tiles) % stages;
  }
  __device__ int last(int stages) const { return (stage == 0 ? stages : stage) - 1; }
};

// Whether there is a kernel that knows scales to be of the tokens' dtype, beside one that asks: where sums are scaled
// for several groups, converting scales is a third of what the groups cost, if warpgroups share k-tiles or have two
// blocks of columns.
template <class Config>
constexpr bool knows_scales(int segments) {
  return (Config::kSharers > 1 || Config::kBlocks > 1) && segments > 1 && scales_sums(Config::kWarpTile, segments);
}

// kSegments: groups that a k-tile has, whose scales are then different. kSameScales: whether these are of dtype T.
template <class Config, class T, bool kZeros, int kSegments, bool kSameScales>
struct CodesMainloop {
  static constexpr int kTokens = Config::kCtaTile.m, kRegisters = kTokens / 2, kBlocks = Config::kBlocks;
  // A k-tile is multiplied in parts: while the tensor cores work on one, the fragments of the next are made.
  static constexpr int kParts = Config::kParts, kSteps = Config::kHalves * kPackedSteps / kParts;
  // Sums of a group's products are scaled, if there are so few tokens that this is less work than to scale the weights,
  // which are then rounded once more.
  static constexpr bool kScalesSums = scales_sums(Config::kWarpTile, kSegments);
  static_assert(!kScalesSums || kParts % kSegments == 0);
  // Of a group whose sums are scaled, else of the whole k-tile.
  static constexpr int kPartsOfSums = kScalesSums ? kParts / kSegments : kParts;
  // Whether ldmatrix loads them, which takes a few instructions less, and an address more: where warpgroups share
  // k-tiles there is no register for it, and float16 was slower where weights are scaled.
  static constexpr bool kMatrixOfScales = kScalesSums && Config::kSharers == 1;
  using Stage = typename Config::Stage;
  using Sums = float[kBlocks][kRegisters];
  using Fragments = uint32_t[kBlocks * kSteps][4];

  // Of the two columns of this lane in each block, for each group of a part, which for the next parts may be the same:
  // scales, as they are for the sums, else as pairs of T for the weights; and zero points.
  static constexpr int kOfPart = kSegments < kParts ? 1 : kSegments / kParts;
  struct Parameters {
    uint32_t scales[kBlocks][kOfPart][2], zeros[kZeros ? kBlocks : 1][kZeros ? kOfPart : 1][2];
  };

  const int column;  // of the lane in the CTA tile, in the first block
  const int tile;    // of 16 columns, of the warp
  const DType scale_dtype;

  __device__ explicit CodesMainloop(int warpgroup, DType scale_dtype)
      : column(warpgroup * kBlocks * ptx::kWgmmaM + ptx::accumulator_element(thread(), 0).row),
        tile(warpgroup * kBlocks * kTilesOfBlock + thread() / 32),
        scale_dtype(scale_dtype) {}

  __device__ static int thread() { return static_cast<int>(threadIdx.x) % ptx::kWarpgroupThreads; }

  // The first of eight columns whose scales the lane gives ldmatrix the address of. Transposed, a lane has its column
  // of two rows, here of the same one; a matrix is eight columns, of up to two blocks.
  __device__ int octet() const {
    static_assert(kBlocks <= 2);
    return tile * kPackedTileN + thread() / 8 % 2 * kColumnDistance + thread() / 16 % kBlocks * ptx::kWgmmaM;
  }
  __device__ float to_float(uint32_t bits) const {
    if constexpr (kSameScales && std::is_same_v<T, __nv_bfloat16>) return __uint_as_float(bits << 16);
    if constexpr (kSameScales) return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
    if constexpr (kMatrixOfScales) return ptx::widen(bits, scale_dtype == DType::kF16);
    const auto half = static_cast<uint16_t>(bits);
    const float wide = __half2float(__ushort_as_half(half)), bfloat = __bfloat162float(__ushort_as_bfloat16(half));
    return scale_dtype == DType::kF16 ? wide : bfloat;
  }
  __device__ uint32_t to_pair(uint32_t bits) const {
    constexpr DType kSame = std::is_same_v<T, __half> ? DType::kF16 : DType::kBF16;
    if (scale_dtype == kSame) return bits * 0x10001u;
    const float scale = to_float(bits);
    return ptx::pack<T>(scale, scale);
  }

  __device__ void load(Parameters& parameters, const Stage& stage, int part) const {
#pragma unroll
    for (int group = 0; group < kOfPart; ++group) {
      const int segment = kSegments < kParts ? part * kSegments / kParts : part * kOfPart + group;
      uint32_t pairs[4];  // of the same scale twice
      if constexpr (kMatrixOfScales) ptx::ldmatrix<true>(pairs, stage.scales[segment] + octet());
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = column + block * ptx::kWgmmaM + i * kColumnDistance;
          const uint32_t bits = kMatrixOfScales ? pairs[block * 2 + i] : stage.scales[segment][at];
          parameters.scales[block][group][i] = kScalesSums ? bits : to_pair(bits);
          if constexpr (kZeros) {
            const uint32_t zero = stage.zeros[segment][at];
            parameters.zeros[block][group][i] = zero < kMostZero ? zero : kMostZero;
          }
        }
      }
    }
  }

  // A's fragments of a part of a k-tile.
  __device__ void convert(Fragments& fragments, Parameters& parameters, const Stage& stage, int part) const {
    struct alignas(kSteps * sizeof(uint32_t)) Words {
      uint32_t of_step[kSteps];
    };
    static_assert(kPackedSteps % kSteps == 0);
    const int first = part * kSteps;
    Words words[kBlocks];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      words[block] = *reinterpret_cast<const Words*>(
          stage.codes[tile + block * kTilesOfBlock] + first / kPackedSteps * kPackedTileBytes +
          thread() % 32 * static_cast<int>(sizeof(uint4)) + first % kPackedSteps * static_cast<int>(sizeof(uint32_t)));
    }
    if (part * kSegments % kParts == 0) load(parameters, stage, part);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int group = 0; group < kOfPart; ++group) {
        const auto zero = [&](int i) -> uint32_t { return kZeros ? parameters.zeros[block][group][i] : kMiddle; };
        const CodePairs<T> pairs(zero(0), zero(1));
#pragma unroll
        for (int j = group * (kSteps / kOfPart); j < (group + 1) * (kSteps / kOfPart); ++j) {
          auto& fragment = fragments[block * kSteps + j];
          pairs.fragment(fragment, words[block].of_step[j]);
          if constexpr (!kScalesSums) {
#pragma unroll
            for (int i = 0; i < 4; ++i) fragment[i] = ptx::mul2<T>(fragment[i], parameters.scales[block][group][i % 2]);
          }
        }
      }
    }
    ptx::pin_registers(fragments);  // else ptxas makes them later, and lets each wgmma wait for the one before it
  }

  // Begins sums += a part's products, or = if they are the first.
  __device__ static void issue(Sums& sums, const Fragments& fragments, const Stage& stage, int part, bool first) {
    constexpr ptx::MatrixLayout kLayout = {
        .leading_bytes = 16, .stride_bytes = 8 * Config::kRowBytes, .swizzle = ptx::Swizzle::k128B};
    const int step = part * kSteps;
    const uint64_t tokens = ptx::matrix_descriptor(ptx::shared_address(stage.tokens[step / kPackedSteps]), kLayout);
    ptx::wgmma_fence();
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        ptx::wgmma<T, T, kTokens, ptx::Major::kK>(
            sums[block], fragments[block * kSteps + j],
            ptx::advance(tokens, (step % kPackedSteps + j) * ptx::kWgmmaStepBytes), !(first && j == 0));
      }
    }
    ptx::wgmma_commit();
  }

  // Each warp for itself, after a wgmma_wait() after the last read of a stage: there all of its lanes have met.
  template <class Pipeline>
  __device__ static void release(Pipeline& pipeline, int stage) {
    if (thread() % 32 == 0) ptx::mbarrier_arrive(pipeline.empty[stage]);
  }

  // sums = the weights' columns * the tokens, over k_tiles that the producer brings. Calls all_seen() when the last one
  // has come. keeps_last: its stage is not released.
  template <class Storage, class AllSeen>
  __device__ void run(Sums& sums, Storage& smem, CodesRing& ring, int k_tiles, bool keeps_last,
                      AllSeen&& all_seen) const {
    auto& pipeline = smem.pipeline;
#pragma unroll
    for (auto& block : sums) {
#pragma unroll
      for (float& sum : block) sum = 0.0f;
    }
    if (k_tiles == 0) return all_seen();
    Fragments fragments[2];
    Parameters parameters;
    int stage = ring.stage, old = stage;
    ptx::mbarrier_wait(pipeline.full[stage], ring.parity);
    if (k_tiles == 1) all_seen();
    convert(fragments[0], parameters, smem.stages[stage], 0);
    Sums products;  // of a group, if those are scaled
    Sums& into = either(products, sums);
#pragma unroll 1
    for (int i = 0; i < k_tiles; ++i) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const bool begins = part % kPartsOfSums == 0, ends = (part + 1) % kPartsOfSums == 0;
        issue(into, fragments[part % 2], smem.stages[stage], part, begins && (kScalesSums || i == 0));
        // The part before: its fragments are free, and so is its stage.
        if (!kScalesSums || !begins) ptx::wgmma_wait<1>();
        if (!kScalesSums && part == 0 && i > 0) release(pipeline, old);
        float factors[kBlocks][2];
        if (kScalesSums && ends) {
#pragma unroll
          for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
            for (int j = 0; j < 2; ++j) factors[block][j] = to_float(parameters.scales[block][0][j]);
          }
        }
        if (part + 1 < kParts) {
          convert(fragments[(part + 1) % 2], parameters, smem.stages[stage], part + 1);
        } else {
          old = stage;
          ring.template advance<Config::kSharers>(Config::kStages);
          stage = ring.stage;
          if (i + 1 < k_tiles) {
            ptx::mbarrier_wait(pipeline.full[stage], ring.parity);
            if (i + 2 == k_tiles) all_seen();
            convert(fragments[0], parameters, smem.stages[stage], 0);
          }
        }
        if (kScalesSums && ends) {
          ptx::wgmma_wait<0>();
          ptx::pin_registers(products);
          if (part + 1 == kParts) release(pipeline, old);
#pragma unroll
          for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
            for (int j = 0; j < kRegisters; ++j) sums[block][j] += factors[block][j / 2 % 2] * products[block][j];
          }
        }
      }
    }
    if constexpr (!kScalesSums) {
      ptx::wgmma_wait<0>();
      ptx::pin_registers(sums);
      if (!keeps_last) release(pipeline, old);
    }
    if constexpr (CodePairs<T>::kFactor != 1.0f) {
#pragma unroll
      for (auto& block : sums) {
#pragma unroll
        for (float& sum : block) sum *= CodePairs<T>::kFactor;
      }
    }
  }

 private:
  __device__ static Sums& either(Sums& products, Sums& sums) {
    if constexpr (kScalesSums) return products;
    return sums;
  }

  static constexpr int kTilesOfBlock = ptx::kWgmmaM / kPackedTileN;
};

}  // namespace jaxgemm::sm90
