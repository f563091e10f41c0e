// cuda/ptx/shared_storage.cuh, emulated: each CTA has shared memory of its own.
#pragma once

#include "core/runtime.h"

namespace jaxgemm {

template <class SharedStorage>
EMU_INLINE SharedStorage& shared_storage() {
  static_assert(alignof(SharedStorage) <= 1024);
  return *static_cast<SharedStorage*>(emu::shared_memory());
}

}  // namespace jaxgemm
