// The kernels of sm90.cu. Variants without a defect: X(variant, text). Defects that it can plant, one kernel for each:
// X(identifier, variant that it is planted in, text). Families are called "sm90.<text>". The comment on each defect
// says how it shows.
#pragma once

#include <string_view>

#define JAXGEMM_SM90_VARIANTS(X)                            \
  /* Results go from registers to global memory. */         \
  X(Registers, "registers")                                 \
  /* They are staged in shared memory and stored by TMA. */ \
  X(TmaStore, "tma_store")                                  \
  /* Two CTAs share a tile of rhs. */                       \
  X(Multicast, "multicast")

#define JAXGEMM_SM90_DEFECTS(X)                                                                        \
  /* Copies overwrite a stage that is in use: WAW, protocol. */                                        \
  X(NoEmptyWait, Registers, "no_empty_wait")                                                           \
  /* The same, since a stage is given back before its wgmmas are waited for. */                        \
  X(EarlyRelease, Registers, "early_release")                                                          \
  /* The producer waits for a phase that nobody begins: deadlock. */                                   \
  X(ProducerParity, Registers, "producer_parity")                                                      \
  /* The consumers wait for the phase before the first: uninitialised, RAW. */                         \
  X(ConsumerParity, Registers, "consumer_parity")                                                      \
  /* Parities do not change when the ring begins anew: WAW, protocol. */                               \
  X(StuckParity, Registers, "stuck_parity")                                                            \
  /* Bytes that no copy brings are expected: deadlock. */                                              \
  X(TooManyTxBytes, Registers, "too_many_tx_bytes")                                                    \
  /* The copy of rhs is not expected: RAW, or deadlock in the next phase. */                           \
  X(TooFewTxBytes, Registers, "too_few_tx_bytes")                                                      \
  /* Shared memory is read before it is written: uninitialised, RAW. */                                \
  X(NoFullWait, Registers, "no_full_wait")                                                             \
  /* A stage is empty when one of two consumers says so: WAR. */                                       \
  X(EmptyCountTooSmall, Registers, "empty_count_too_small")                                            \
  /* A stage is never empty again: deadlock. */                                                        \
  X(EmptyCountTooLarge, Registers, "empty_count_too_large")                                            \
  /* Consumers read one stage and give back another: deadlock. */                                      \
  X(ReleasesWrongStage, Registers, "releases_wrong_stage")                                             \
  /* Slices of 16 along K overlap: wrong values. */                                                    \
  X(HalfDescriptorStep, Registers, "half_descriptor_step")                                             \
  /* Eight rows overlap the eight before: wrong values. */                                             \
  X(WrongStrideBytes, Registers, "wrong_stride_bytes")                                                 \
  /* TMA writes chunks elsewhere than wgmma reads them: wrong values. */                               \
  X(UnswizzledLoad, Registers, "unswizzled_load")                                                      \
  /* wgmma undoes another swizzle than TMA did: wrong values. */                                       \
  X(WrongDescriptorSwizzle, Registers, "wrong_descriptor_swizzle")                                     \
  /* rhs is multiplied as its transpose: wrong values. */                                              \
  X(WrongMajor, Registers, "wrong_major")                                                              \
  /* Both consumers multiply the same rows of lhs: wrong values. */                                    \
  X(SameRowsTwice, Registers, "same_rows_twice")                                                       \
  /* k-tiles of rhs are read one box too far: wrong values. */                                         \
  X(CoordinateOffByOneBox, Registers, "coordinate_off_by_one_box")                                     \
  /* Boxes begin within 16 bytes: misaligned. */                                                       \
  X(CoordinateMisaligned, Registers, "coordinate_misaligned")                                          \
  /* Accumulators are stored while wgmma works on them: protocol, NaN. */                              \
  X(NoFinalWait, Registers, "no_final_wait")                                                           \
  /* Zeros are in no order with the first wgmma. */                                                    \
  X(NoWgmmaFence, Registers, "no_wgmma_fence")                                                         \
  /* Waits wait for nothing. */                                                                        \
  X(NoCommit, Registers, "no_commit")                                                                  \
  /* mbarriers are used before they are initialised, or unordered with that. */                        \
  X(NoBarrierAfterInit, Registers, "no_barrier_after_init")                                            \
  /* The copy engine does not see the initialisation. */                                               \
  X(NoInitFence, Registers, "no_init_fence")                                                           \
  /* Rows g and g + 8 of an accumulator change places: wrong values. */                                \
  X(RowHalvesSwapped, Registers, "row_halves_swapped")                                                 \
  /* One warp of a consumer gives its registers back, the others do not: they wait for ever. */        \
  X(PartialSetmaxnreg, Registers, "partial_setmaxnreg")                                                \
  /* The copy engine reads what the generic proxy has not shown it: RAW. */                            \
  X(NoProxyFence, TmaStore, "no_proxy_fence")                                                          \
  /* It reads what other threads have not written yet: RAW. */                                         \
  X(NoBarrierBeforeStore, TmaStore, "no_barrier_before_store")                                         \
  /* Threads meet in groups that do not know of each other's size. */                                  \
  X(BarrierCountsDiffer, TmaStore, "barrier_counts_differ")                                            \
  /* Staging memory is overwritten under a store: WAR. */                                              \
  X(NoWaitBeforeReuse, TmaStore, "no_wait_before_reuse")                                               \
  /* The CTA exits under a store. */                                                                   \
  X(NoWaitBeforeExit, TmaStore, "no_wait_before_exit")                                                 \
  /* Stores belong to no group: waits wait for nothing. */                                             \
  X(NoStoreCommit, TmaStore, "no_store_commit")                                                        \
  /* Boxes of the first rows begin before the tensor: protocol. */                                     \
  X(StoresBeforeTensor, TmaStore, "stores_before_tensor")                                              \
  /* A half of rhs stays in the CTA that loads it: deadlock. */                                        \
  X(WrongMulticastMask, Multicast, "wrong_multicast_mask")                                             \
  /* The other CTA is never told that a stage is empty, its neighbour is told twice: WAR, deadlock. */ \
  X(ArrivesAtOwn, Multicast, "arrives_at_own")                                                         \
  /* Copies overwrite a stage that the other CTA still reads: WAR. */                                  \
  X(IgnoresOtherCta, Multicast, "ignores_other_cta")                                                   \
  /* A CTA exits before the other has told it for the last time. */                                    \
  X(NoClusterBarrierAtExit, Multicast, "no_cluster_barrier_at_exit")                                   \
  /* A CTA reaches mbarriers that the other one has not initialised. */                                \
  X(NoClusterBarrierAfterInit, Multicast, "no_cluster_barrier_after_init")

namespace jaxgemm::sm90 {

enum class Variant {
#define JAXGEMM_ENUMERATOR(id, text) k##id,
  JAXGEMM_SM90_VARIANTS(JAXGEMM_ENUMERATOR)
#undef JAXGEMM_ENUMERATOR
};

enum class Defect {
  kNone,
#define JAXGEMM_ENUMERATOR(id, variant, text) k##id,
  JAXGEMM_SM90_DEFECTS(JAXGEMM_ENUMERATOR)
#undef JAXGEMM_ENUMERATOR
};

constexpr std::string_view family_name(Variant variant, Defect defect) {
  switch (defect) {
    case Defect::kNone: break;
#define JAXGEMM_CASE(id, variant, text) \
  case Defect::k##id: return "sm90." text;
      JAXGEMM_SM90_DEFECTS(JAXGEMM_CASE)
#undef JAXGEMM_CASE
  }
  switch (variant) {
#define JAXGEMM_CASE(id, text) \
  case Variant::k##id: return "sm90." text;
    JAXGEMM_SM90_VARIANTS(JAXGEMM_CASE)
#undef JAXGEMM_CASE
  }
  return "sm90";
}

}  // namespace jaxgemm::sm90
