// The way of a warp's rounded sums to rows of out that begin at any element, but lie end to end, of tiles that have all
// columns: what a warp has of eight neighbouring rows is then one run of memory (out_run.cuh).
#pragma once

#include <cstdint>

#include "epilogue/out_run.cuh"
#include "ptx/pin.cuh"
#include "ptx/wgmma.cuh"
#include "tile/run_of_rows.h"
#include "tile/swizzled_rows.cuh"

namespace jaxgemm::sm90 {

// A warp's, in shared memory.
struct RunOfRows {
  alignas(ptx::kChunkBytes) char bytes[kRunBytes];
};

// Values are elements of out, or pairs of 16-bit ones.
template <class Out, class Value>
class WholeRows {
 public:
  // Of the warp's rows, the first `rows`, if any, from g_rows on.
  template <int kRegisters>
  __device__ static void write(const Value (&values)[kRegisters], RunOfRows& s_run, int lane, Out* g_rows, int rows,
                               int cols) {
#pragma unroll 1
    for (bool later = false; rows > 0; later = true) {
      int pinned[] = {lane, cols};  // what follows from these is computed in each turn, and not kept in registers
      ptx::pin_registers(pinned);
      lane = pinned[0];
      cols = pinned[1];
      const OutRun<Out> run(g_rows);
      Out* s_first = run.staged(s_run.bytes);
      stage(values, later, s_first + lane / 4 * cols + lane % 4 * 2, cols - lane % 4 * 2, cols);
      __syncwarp();
      run.template write<kLanes>(s_first, lane, (rows < kRunRows ? rows : kRunRows) * cols);
      __syncwarp();  // what is overwritten has been read
      rows -= kRunRows;
      g_rows += kRunRows * cols;
    }
  }

 private:
  static constexpr int kLanes = 32;
  static constexpr int kValues = sizeof(Out) == 2 ? 1 : 2;  // that a lane has of a row, in eight columns
  static constexpr int kColsAtOnce = 64;  // code for columns behind the last is stepped over in such pieces

  // Of the accumulator's two rows that a lane has elements of, in every eight columns two, the first or the `later`
  // one: from s_elements on, where its first element belongs, what of it lies in the `cols` columns from there. The row
  // has all_cols.
  template <int kRegisters>
  __device__ static void stage(const Value (&values)[kRegisters], bool later, Out* s_elements, int cols, int all_cols) {
#pragma unroll
    for (int i = 0; i < kRegisters; i += 2 * kValues) {
      const int at = i / kValues * 4;
      if (at % kColsAtOnce == 0 && at >= all_cols) return;
      const auto value = [&](int j) { return later ? values[i + kValues + j] : values[i + j]; };
      if constexpr (sizeof(Out) == 2) {
        auto* s_halves = reinterpret_cast<uint16_t*>(s_elements);
        const uint32_t pair = value(0);
        if (at < cols) s_halves[at] = static_cast<uint16_t>(pair);
        if (at + 1 < cols) s_halves[at + 1] = static_cast<uint16_t>(pair >> 16);
      } else {
        if (at < cols) s_elements[at] = value(0);
        if (at + 1 < cols) s_elements[at + 1] = value(1);
      }
    }
  }
};

}  // namespace jaxgemm::sm90
