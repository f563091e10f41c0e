// What the probes of mma multiply: operands and accumulators made of random words.
#pragma once

#include "probes/one_warp.cuh"
#include "ptx/convert.cuh"

namespace jaxgemm::probes {

// A small integer from one byte of a word: -8 to 7.
__device__ inline int small(uint32_t word, int byte) { return static_cast<int>(word >> 8 * byte & 15) - 8; }

template <class T>
__device__ uint32_t small_pair(uint32_t word) {
  return ptx::pack<T>(static_cast<float>(small(word, 0)), static_cast<float>(small(word, 1)));
}

__device__ inline float small_accumulator(uint32_t word) {
  return static_cast<float>(small(word, 0) * 100 + small(word, 1));
}

// Reads 4 words of a, 2 of b and 4 of d per lane.
struct MmaWords {
  static constexpr int kInWords = kLanes * 10, kOutWords = kLanes * 4;
  using Shared = NoStorage;
};

// Operands made of words by operand_a() and operand_b().
template <class OperandA, class OperandB, class Multiply>
__device__ void run_mma(const uint32_t* in, uint32_t* out, OperandA&& operand_a, OperandB&& operand_b,
                        Multiply&& multiply) {
  uint32_t a[4], b[2];
  float d[4];
  in += lane() * 10;
  for (int i = 0; i < 4; ++i) a[i] = operand_a(in[i]);
  for (int i = 0; i < 2; ++i) b[i] = operand_b(in[4 + i]);
  for (int i = 0; i < 4; ++i) d[i] = small_accumulator(in[6 + i]);
  multiply(d, a, b);
  for (int i = 0; i < 4; ++i) out[lane() * 4 + i] = float_bits(d[i]);
}

// a is the unit matrix as far as its 16 rows reach, from K = 0 on, then from K = 16 on (twice, one below the other, for
// K = 8): elements of b must arrive as they are, subnormals too.
template <class Format>
struct MmaUnit : MmaWords {
  static constexpr int kElems = Format::kElems, kK = 8 * kElems, kRows = 16;
  static constexpr int kTurns = kK <= kRows ? 1 : kK / kRows;
  static constexpr int kOutWords = kTurns * MmaWords::kOutWords;
  static __device__ void run(Shared&, const uint32_t* in, uint32_t* out) {
    for (int turn = 0; turn < kTurns; ++turn) {
      uint32_t a[4], b[2];
      float d[4] = {};
      for (int r = 0; r < 4; ++r) {
        a[r] = 0;
        for (int i = 0; i < kElems; ++i) {
          const int row = lane() / 4 + r % 2 * 8, k = r / 2 * (kK / 2) + lane() % 4 * kElems + i;
          if ((turn * kRows + row) % kK == k) a[r] |= Format::kOne << 32 / kElems % 32 * i;
        }
      }
      for (int i = 0; i < 2; ++i) b[i] = Format::finite(in[lane() * 2 + i]);
      Format::multiply(d, a, b);
      for (int i = 0; i < 4; ++i) out[(turn * kLanes + lane()) * 4 + i] = float_bits(d[i]);
    }
  }
};

}  // namespace jaxgemm::probes
