// Rows of out that lie end to end, where TMA cannot store: eight of a warp's go out together as one run of memory
// (epilogue/whole_rows.cuh). For the kernel and for the model that chooses it.
#pragma once

#include <cstdint>

namespace jaxgemm {

inline constexpr int kRunRows = 8, kRunBytes = 4096;  // in shared memory

// Columns that out may have. A run may begin so many bytes behind a multiple of 16, less one element.
constexpr int most_run_cols(int element_bytes) { return (kRunBytes - 16) / kRunRows / element_bytes; }

// The same for device code.
template <int kElementBytes>
inline constexpr int kMostRunCols = most_run_cols(kElementBytes);

}  // namespace jaxgemm
