// How Hopper's kernels lay out tiles in shared memory, for TMA and wgmma alike: in rows of 128 bytes, whose 16-byte
// chunks change places from row to row (PTX ISA, "Tensor Swizzling Modes").
#pragma once

#include "ptx/wgmma_types.cuh"

namespace jaxgemm::sm90 {

inline constexpr ptx::Swizzle kSwizzle = ptx::Swizzle::k128B;
inline constexpr int kRowBytes = span_bytes(kSwizzle);
inline constexpr int kAtomRows = 8, kAtomBytes = kAtomRows * kRowBytes;  // the pattern repeats after an atom, to which
                                                                         // tiles are aligned

}  // namespace jaxgemm::sm90
