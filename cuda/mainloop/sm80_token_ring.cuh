// The ring of stages by which warps of int4_mma have tokens, 16 bits each, through shared memory, by cp.async.
#pragma once

#include <cstdint>

#include "ptx/cp_async.cuh"
#include "tile/alignment.h"
#include "tile/global_matrix.cuh"

namespace jaxgemm {

inline constexpr int kTokenVectorElems = kVectorBytes / 2;  // of one copy

// The tokens that one share of K needs, as they come through shared memory, with the groups of each unit. Each thread
// copies the same 16 bytes of a row of every unit.
template <class Config, class T, class Stage>
struct TokenRing {
  static constexpr int kPieces = Config::kUnitK / kTokenVectorElems, kSharers = Config::kWarpsN * kWarpSize;
  static constexpr int kRowsAtOnce = kSharers / kPieces;
  static constexpr int kRowsBytes = kRowsAtOnce * static_cast<int>(sizeof(Stage::rows[0]));
  static_assert(kRowsAtOnce * kPieces == kSharers);

  Stage* stages;
  const GlobalMatrix<T, false>& g_x;
  int tokens, end, K;  // end: of this share of K
  const T* g_piece;
  int next = 0;  // stage to be read

  // From row k of rhs on; the first token is at g_first.
  __device__ TokenRing(Stage* stages, const GlobalMatrix<T, false>& g_x, const T* g_first, int tokens, int end, int K,
                       int k)
      : stages(stages),
        g_x(g_x),
        tokens(tokens),
        end(end),
        K(K),
        g_piece(g_first + row() * g_x.ld + k + thread() % kPieces * kTokenVectorElems) {}

  // Begins the copy of the unit of row k, which is the next one, to that stage, and of what copy_groups(stage, k)
  // copies, if it exists. Rows beyond the last token are not read; beyond K there are zeros, for which PTX wants some
  // address that is mapped.
  template <class Groups>
  __device__ void fill(int stage, int k, const Groups& copy_groups) {
    if (k < end) {
      char* s_to = stages[stage].rows[row()] + thread() % kPieces * kVectorBytes;
      const T* g_from = g_piece;
      const int left = K - k - thread() % kPieces * kTokenVectorElems;  // elements of the row from the piece on
      if (left >= kTokenVectorElems) {
#pragma unroll 1
        for (int i = row(); i < tokens; i += kRowsAtOnce, s_to += kRowsBytes, g_from += kRowsAtOnce * g_x.ld) {
          ptx::cp_async_16(s_to, g_from);
        }
      } else {
#pragma unroll 1
        for (int i = row(); i < tokens; i += kRowsAtOnce, s_to += kRowsBytes, g_from += kRowsAtOnce * g_x.ld) {
          ptx::cp_async_16(s_to, left > 0 ? g_from : g_x.data, left > 0 ? left * 2 : 0);
        }
      }
      copy_groups(stages[stage], k);
    }
    ptx::cp_async_commit();
    g_piece += Config::kCtaTile.k;
  }

  // Waits for the oldest unit that has not been read.
  __device__ const Stage& wait() const {
    ptx::cp_async_wait<Config::kStages - 2>();
    if constexpr (Config::kWarpsN == 1) {
      __syncwarp();
    } else {
      __syncthreads();  // not of those alone that share the stages: racecheck loses count of such barriers
    }
    return stages[next];
  }

  // After that, begins the copy of another one in the place of the one before.
  template <class Groups>
  __device__ void refill(int k, const Groups& copy_groups) {
    fill(next == 0 ? Config::kStages - 1 : next - 1, k, copy_groups);
    next = next + 1 == Config::kStages ? 0 : next + 1;
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kSharers; }
  __device__ static int row() { return thread() / kPieces; }
};

}  // namespace jaxgemm
