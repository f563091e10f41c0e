// How many k-tiles a lane loads before it multiplies the first of them, of a kernel that has registers for
// KernelInfo::tiles_at_once: for the kernel and for the model that chooses it.
#pragma once

namespace jaxgemm {

// Whole vectors along K go as they are into the registers that are multiplied. Rows that have to be turned around, and
// elements that come one by one, take more of them meanwhile.
constexpr int loaded_at_once(int tiles_at_once, bool vectors_along_k) {
  return vectors_along_k ? tiles_at_once : tiles_at_once / 2;
}

// The same for device code.
template <int kTilesAtOnce, bool kVectorsAlongK>
inline constexpr int kLoadedAtOnce = loaded_at_once(kTilesAtOnce, kVectorsAlongK);

}  // namespace jaxgemm
