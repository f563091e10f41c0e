// The K loop of 4-bit weights on wgmma: a warpgroup makes A's fragments of packed codes, as its tensor cores multiply
// the ones before, by tokens that TMA brought to shared memory.
#pragma once

#include "ptx/address.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"
#include "tile/packed.cuh"

namespace jaxgemm::sm90 {

// kSegments: groups that a k-tile has, whose scales are then different.
template <class Config, class T, bool kZeros, int kSegments>
struct CodesMainloop {
  static constexpr int kTokens = Config::kCtaTile.m, kHalves = Config::kHalves, kRegisters = kTokens / 2;
  // Sums of a group's products are scaled, if there are so few tokens that this is less work than to scale the weights,
  // which are then rounded once more.
  static constexpr bool kScalesSums = Config::kScalesSums && kSegments == 1;
  using Stage = typename Config::Stage;
  using Sums = float[kRegisters];
  using Fragments = uint32_t[kPackedSteps][4];

  // Of the two columns of this lane, for each group of half a k-tile, which for the second half may be those of the
  // first: scales, as they are for the sums, else as pairs of T for the weights; and zero points.
  static constexpr int kOfHalf = kSegments < kHalves ? 1 : kSegments / kHalves;
  struct Parameters {
    uint32_t scales[kOfHalf][2], zeros[kZeros ? kOfHalf : 1][2];
  };

  const int column;  // of the lane in the CTA tile
  const int tile;    // of 16 columns, of the warp
  const DType scale_dtype;

  __device__ explicit CodesMainloop(int warpgroup, DType scale_dtype)
      : column(warpgroup * ptx::kWgmmaM + ptx::accumulator_element(thread(), 0).row),
        tile(warpgroup * (ptx::kWgmmaM / kPackedTileN) + thread() / 32),
        scale_dtype(scale_dtype) {}

  __device__ static int thread() { return static_cast<int>(threadIdx.x) % ptx::kWarpgroupThreads; }

  __device__ float to_float(uint32_t bits) const {
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

  __device__ void load(Parameters& parameters, const Stage& stage, int half) const {
#pragma unroll
    for (int part = 0; part < kOfHalf; ++part) {
      const int segment = kSegments < kHalves ? 0 : half * kOfHalf + part;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = column + i * ColumnGroups<Grouping::kScales16>::kDistance;
        const uint32_t bits = stage.scales[segment][at];
        parameters.scales[part][i] = kScalesSums ? bits : to_pair(bits);
        if constexpr (kZeros) {
          const uint32_t zero = stage.zeros[segment][at];
          parameters.zeros[part][i] = zero < kMostZero ? zero : kMostZero;
        }
      }
    }
  }

  // A's fragments of half a k-tile.
  __device__ void convert(Fragments& fragments, Parameters& parameters, const Stage& stage, int half) const {
    const uint4 words = *reinterpret_cast<const uint4*>(stage.codes[tile] + half * kPackedTileBytes +
                                                        thread() % 32 * static_cast<int>(sizeof(uint4)));
    const uint32_t word[kPackedSteps] = {words.x, words.y, words.z, words.w};
    if (half == 0 || kSegments >= kHalves) load(parameters, stage, half);
#pragma unroll
    for (int part = 0; part < kOfHalf; ++part) {
      const auto zero = [&](int i) -> uint32_t { return kZeros ? parameters.zeros[part][i] : kMiddle; };
      const CodePairs<T> pairs(zero(0), zero(1));
#pragma unroll
      for (int j = part * (kPackedSteps / kOfHalf); j < (part + 1) * (kPackedSteps / kOfHalf); ++j) {
        pairs.fragment(fragments[j], word[j]);
        if constexpr (!kScalesSums) {
#pragma unroll
          for (int i = 0; i < 4; ++i) fragments[j][i] = ptx::mul2<T>(fragments[j][i], parameters.scales[part][i % 2]);
        }
      }
    }
    ptx::pin_registers(fragments);  // else ptxas makes them later, and lets each wgmma wait for the one before it
  }

  // Begins sums += half a k-tile's products, or = if they are the first.
  __device__ static void issue(Sums& sums, const Fragments& fragments, const Stage& stage, int half, bool first) {
    constexpr ptx::MatrixLayout kLayout = {
        .leading_bytes = 16, .stride_bytes = 8 * Config::kRowBytes, .swizzle = ptx::Swizzle::k128B};
    const uint64_t tokens = ptx::matrix_descriptor(ptx::shared_address(stage.tokens[half]), kLayout);
    ptx::wgmma_fence();
#pragma unroll
    for (int j = 0; j < kPackedSteps; ++j) {
      ptx::wgmma<T, T, kTokens, ptx::Major::kK>(sums, fragments[j], ptx::advance(tokens, j * ptx::kWgmmaStepBytes),
                                                !(first && j == 0));
    }
    ptx::wgmma_commit();
  }

  // Each warp for itself, when all of its lanes have read what they want of a stage.
  template <class Pipeline>
  __device__ static void release(Pipeline& pipeline, int stage) {
    __syncwarp();
    if (thread() % 32 == 0) ptx::mbarrier_arrive(pipeline.empty[stage]);
  }

  // sums = the weights' columns * the tokens, over k_tiles that the producer brings.
  template <class Storage>
  __device__ void run(Sums& sums, Storage& smem, int k_tiles) const {
    auto& pipeline = smem.pipeline;
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    if (k_tiles == 0) return;
    Fragments fragments[kHalves];
    Parameters parameters;
    int stage = 0;
    uint32_t parity = 0;
    ptx::mbarrier_wait(pipeline.full[stage], parity);
    convert(fragments[0], parameters, smem.stages[stage], 0);
    if constexpr (kScalesSums) {
      Sums products;
      for (int i = 0; i < k_tiles; ++i) {
        issue(products, fragments[0], smem.stages[stage], 0, true);
        convert(fragments[1], parameters, smem.stages[stage], 1);
        issue(products, fragments[1], smem.stages[stage], 1, false);
        const float factors[2] = {to_float(parameters.scales[0][0]), to_float(parameters.scales[0][1])};
        ptx::wgmma_wait<1>();
        const int old = stage;
        if (i + 1 < k_tiles) {
          advance(stage, parity);
          ptx::mbarrier_wait(pipeline.full[stage], parity);
          convert(fragments[0], parameters, smem.stages[stage], 0);
        }
        ptx::wgmma_wait<0>();
        ptx::pin_registers(products);
        release(pipeline, old);
#pragma unroll
        for (int j = 0; j < kRegisters; ++j) sums[j] += factors[j / 2 % 2] * products[j];
      }
    } else {
      for (int i = 0; i < k_tiles; ++i) {
        issue(sums, fragments[0], smem.stages[stage], 0, i == 0);
        ptx::wgmma_wait<1>();  // the half before: its fragments are free, and so is its stage
        if (i > 0) release(pipeline, stage == 0 ? Config::kStages - 1 : stage - 1);
        convert(fragments[1], parameters, smem.stages[stage], 1);
        issue(sums, fragments[1], smem.stages[stage], 1, false);
        ptx::wgmma_wait<1>();
        if (i + 1 < k_tiles) {
          advance(stage, parity);
          ptx::mbarrier_wait(pipeline.full[stage], parity);
          convert(fragments[0], parameters, smem.stages[stage], 0);
        }
      }
      ptx::wgmma_wait<0>();
      ptx::pin_registers(sums);
    }
  }

 private:
  __device__ static void advance(int& stage, uint32_t& parity) {
    stage = stage + 1 == Config::kStages ? 0 : stage + 1;
    parity ^= stage == 0 ? 1u : 0u;
  }
};

}  // namespace jaxgemm::sm90
