// In the build with AddressSanitizer: makes every access to a piece of memory an error, or none again.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace emu {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
inline void forbid(const void* begin, size_t bytes) { __asan_poison_memory_region(begin, bytes); }
inline void permit(const void* begin, size_t bytes) { __asan_unpoison_memory_region(begin, bytes); }
#else
inline constexpr bool kSanitized = false;
inline void forbid(const void*, size_t) {}
inline void permit(const void*, size_t) {}
#endif

}  // namespace emu
