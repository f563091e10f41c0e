// The defects that sm80.cuh can plant, one kernel for each: X(identifier, text), the kernel's family being
// "sm80.<text>". The comment on each says how it shows.
#pragma once

#include <string_view>

#define JAXGEMM_SM80_DEFECTS(X)                                                                                    \
  /* Copies of a group that nobody waited for race with ldmatrix. */                                               \
  X(WaitsForOneFewer, "waits_for_one_fewer")                                                                       \
  /* A thread knows of its own copies only: races between threads. */                                              \
  X(NoBarrier, "no_barrier")                                                                                       \
  /* The same, from a barrier that comes before the wait and tells the others of nothing. */                       \
  X(BarrierBeforeWait, "barrier_before_wait")                                                                      \
  /* Copies into a stage that slower warps still read: WAR. */                                                     \
  X(LoadsBeforeBarrier, "loads_before_barrier")                                                                    \
  /* Shared memory that nobody wrote, or copies in flight, is read. */                                             \
  X(ReadsBeforeWait, "reads_before_wait")                                                                          \
  /* The stage that is read is one ahead: races, wrong values. */                                                  \
  X(ReadsNextStage, "reads_next_stage")                                                                            \
  /* Copies go to the stage that is being read: races, wrong values. */                                            \
  X(OverwritesReadStage, "overwrites_read_stage")                                                                  \
  /* The last copies belong to no group: nobody waits for them. */                                                 \
  X(NoCommit, "no_commit")                                                                                         \
  /* The second k-tile is missing, and all waits are for one group too few. */                                     \
  X(PrologueTooShort, "prologue_too_short")                                                                        \
  /* The third k-tile is copied twice into one place, in no order. */                                              \
  X(PrologueTooLong, "prologue_too_long")                                                                          \
  /* Copies of k-tiles that do not exist: the CTA exits before they have landed. */                                \
  X(LoadsPastLastTile, "loads_past_last_tile")                                                                     \
  /* Beyond the operands' edges stays what was there: uninitialised or stale. */                                   \
  X(TailNotZeroed, "tail_not_zeroed")                                                                              \
  /* The last k-tile is left out if it is not a whole one: wrong values. */                                        \
  X(DropsTail, "drops_tail")                                                                                       \
  /* Copies from behind the operand. */                                                                            \
  X(SourcePastEnd, "source_past_end")                                                                              \
  /* Rows that begin anywhere are copied as vectors: misaligned. */                                                \
  X(SourceMisaligned, "source_misaligned")                                                                         \
  /* A copy of 16 bytes is told that more of them exist: against the rules of cp.async. */                         \
  X(SizeNotClamped, "size_not_clamped")                                                                            \
  /* Vectors are read from where they were not written: wrong values. */                                           \
  X(LoadSwizzleDiffers, "load_swizzle_differs")                                                                    \
  /* Nothing is wrong but the speed: ldmatrix takes two wavefronts for a matrix. */                                \
  X(PoorSwizzle, "poor_swizzle")                                                                                   \
  /* Rows that do not start at a multiple of 16 bytes. */                                                          \
  X(MisalignedRow, "misaligned_row")                                                                               \
  /* The second and the third register of lhs fragments change places: wrong values. */                            \
  X(LhsQuartersSwapped, "lhs_quarters_swapped")                                                                    \
  /* The halves of K of rhs fragments change places: wrong values. */                                              \
  X(RhsHalvesSwapped, "rhs_halves_swapped")                                                                        \
  /* lhs is transposed on the way into registers where it should not be, and the other way round: wrong values. */ \
  X(WrongTranspose, "wrong_transpose")                                                                             \
  /* The second half of a k-tile of lhs meets the first one of rhs: wrong values. */                               \
  X(SlicesSwapped, "slices_swapped")                                                                               \
  /* Sums start at one: wrong values, even where K is zero. */                                                     \
  X(AccumulatorNotZeroed, "accumulator_not_zeroed")                                                                \
  /* Rows g and g + 8 of an accumulator change places: wrong values. */                                            \
  X(RowHalvesSwapped, "row_halves_swapped")                                                                        \
  /* Everything lands one column to the right: wrong values, two writers of one element, writes out of bounds. */  \
  X(ColumnOffByOne, "column_off_by_one")                                                                           \
  /* Rows that do not exist are written: out of bounds, or other threads' elements. */                             \
  X(NoRowMask, "no_row_mask")                                                                                      \
  /* One warp does not come to the barrier: races, and the others wait for ever. */                                \
  X(WarpSkipsBarrier, "warp_skips_barrier")                                                                        \
  /* Warps without rows exit at once: the others wait for ever. */                                                 \
  X(EarlyExit, "early_exit")                                                                                       \
  /* One lane does not come to mma. */                                                                             \
  X(LaneSkipsMma, "lane_skips_mma")

namespace jaxgemm::sm80 {

enum class Defect {
  kNone,
#define JAXGEMM_ENUMERATOR(id, text) k##id,
  JAXGEMM_SM80_DEFECTS(JAXGEMM_ENUMERATOR)
#undef JAXGEMM_ENUMERATOR
};

constexpr std::string_view family_name(Defect defect) {
  switch (defect) {
    case Defect::kNone: break;
#define JAXGEMM_CASE(id, text) \
  case Defect::k##id: return "sm80." text;
      JAXGEMM_SM80_DEFECTS(JAXGEMM_CASE)
#undef JAXGEMM_CASE
  }
  return "sm80.clean";
}

}  // namespace jaxgemm::sm80
