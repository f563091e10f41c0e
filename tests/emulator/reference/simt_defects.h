// The defects that simt.cuh can plant, one kernel for each: X(identifier, text), the kernel's family being
// "simt.<text>". The comment on each says how it shows.
#pragma once

#include <string_view>

#define JAXGEMM_SIMT_DEFECTS(X)                                                                               \
  /* Elements of rhs are read while other warps write them: RAW. */                                           \
  X(NoBarrierBeforeReads, "no_barrier_before_reads")                                                          \
  /* Elements of rhs are overwritten while other warps read them: WAR. */                                     \
  X(NoBarrierAfterReads, "no_barrier_after_reads")                                                            \
  /* The same within a warp, for lhs: RAW. */                                                                 \
  X(NoWarpBarrier, "no_warp_barrier")                                                                         \
  /* Two warps write one row of rhs: WAW, uninitialised rows. */                                              \
  X(TwoWriters, "two_writers")                                                                                \
  /* One row more than rhs has in shared memory is written: out of bounds. */                                 \
  X(RowPastTile, "row_past_tile")                                                                             \
  /* Beyond K nothing is written: uninitialised or stale. */                                                  \
  X(TailNotZeroed, "tail_not_zeroed")                                                                         \
  /* lhs is read beyond K: out of bounds, or wrong values. */                                                 \
  X(ReadsPastRow, "reads_past_row")                                                                           \
  /* Four floats are read from an address that is not a multiple of 16. */                                    \
  X(MisalignedVector, "misaligned_vector")                                                                    \
  /* Threads without columns exit at once: the others wait for ever. */                                       \
  X(EarlyReturn, "early_return")                                                                              \
  /* Each lane takes its neighbour's column: wrong values. */                                                 \
  X(WrongShuffleLane, "wrong_shuffle_lane")                                                                   \
  /* Lanes without columns do not come to the shuffles. */                                                    \
  X(DivergentShuffle, "divergent_shuffle")                                                                    \
  /* Columns that do not exist are written: out of bounds, or other threads' elements. */                     \
  X(NoColumnMask, "no_column_mask")                                                                           \
  /* The rows of neighbouring warps overlap by one: WAW in out, wrong values. */                              \
  X(RowsOverlap, "rows_overlap")                                                                              \
  /* What was read of lhs is written back. */                                                                 \
  X(WritesOperand, "writes_operand")                                                                          \
  /* Nothing is wrong but the speed: rhs lies transposed, and what a warp reads together lies in one bank. */ \
  X(BankConflicts, "bank_conflicts")

namespace jaxgemm::simt {

enum class Defect {
  kNone,
#define JAXGEMM_ENUMERATOR(id, text) k##id,
  JAXGEMM_SIMT_DEFECTS(JAXGEMM_ENUMERATOR)
#undef JAXGEMM_ENUMERATOR
};

constexpr std::string_view family_name(Defect defect) {
  switch (defect) {
    case Defect::kNone: break;
#define JAXGEMM_CASE(id, text) \
  case Defect::k##id: return "simt." text;
      JAXGEMM_SIMT_DEFECTS(JAXGEMM_CASE)
#undef JAXGEMM_CASE
  }
  return "simt.clean";
}

}  // namespace jaxgemm::simt
