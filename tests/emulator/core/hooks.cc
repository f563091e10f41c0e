// The calls that g++ -fsanitize=thread puts before every load and store of the kernels' code. ThreadSanitizer's own
// runtime is not linked: these functions take its place. (gcc/sanitizer.def lists them.) "Unaligned" and ranges are
// what the compiler itself takes for less aligned than their size.
#include "core/emu.h"

namespace emu {
void touch_plain(const void* pointer, size_t bytes, size_t alignment, Access access, Pc where);
}  // namespace emu

#define EMU_HOOK(name, bytes, alignment, access) \
  void name(void* address) { emu::touch_plain(address, bytes, alignment, emu::Access::access, EMU_CALLER); }
#define EMU_HOOKS(bytes)                                     \
  EMU_HOOK(__tsan_read##bytes, bytes, bytes, kRead)          \
  EMU_HOOK(__tsan_write##bytes, bytes, bytes, kWrite)        \
  EMU_HOOK(__tsan_unaligned_read##bytes, bytes, 1, kRead)    \
  EMU_HOOK(__tsan_unaligned_write##bytes, bytes, 1, kWrite)  \
  EMU_HOOK(__tsan_volatile_read##bytes, bytes, bytes, kRead) \
  EMU_HOOK(__tsan_volatile_write##bytes, bytes, bytes, kWrite)

extern "C" {

EMU_HOOKS(1)
EMU_HOOKS(2)
EMU_HOOKS(4)
EMU_HOOKS(8)
EMU_HOOKS(16)

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void* address, size_t bytes) {
  emu::touch_plain(address, bytes, 1, emu::Access::kRead, EMU_CALLER);
}
void __tsan_write_range(void* address, size_t bytes) {
  emu::touch_plain(address, bytes, 1, emu::Access::kWrite, EMU_CALLER);
}

// Of the flag that says whether a function's static variable is initialised: host code. Kernels have no atomics.
unsigned char __tsan_atomic8_load(const volatile unsigned char* address, int) {
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

}  // extern "C"
