// Kernels that are written for the tests of the emulator: each family once as it should be, and once per planted
// defect.
#pragma once

#include <span>
#include <vector>

#include "gemm.h"

// Every reference/<family>.cu, by the name that it gives to JAXGEMM_FAMILY.
#define JAXGEMM_REFERENCE_FAMILIES(X) \
  X(simt)                             \
  X(simt_defects)                     \
  X(sm80)                             \
  X(sm80_defects)                     \
  X(sm90)                             \
  X(sm90_defects)

namespace jaxgemm {
#define JAXGEMM_DECLARE(family) extern const std::span<const Kernel* const> family##_kernels;
JAXGEMM_REFERENCE_FAMILIES(JAXGEMM_DECLARE)
#undef JAXGEMM_DECLARE
}  // namespace jaxgemm

inline std::vector<std::span<const jaxgemm::Kernel* const>> reference_families() {
#define JAXGEMM_ENTRY(family) jaxgemm::family##_kernels,
  return {JAXGEMM_REFERENCE_FAMILIES(JAXGEMM_ENTRY)};
#undef JAXGEMM_ENTRY
}
