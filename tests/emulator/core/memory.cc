// Finds out what an address is, and judges accesses to it.
#include <link.h>

#include <algorithm>
#include <cstring>

#include "core/machine.h"
#include "core/poison.h"
#include "core/runtime.h"
#include "core/session.h"

namespace emu {
namespace {

std::string hex(const void* address) {
  char text[24];
  std::snprintf(text, sizeof text, "%p", address);
  return text;
}

std::string bytes_text(size_t bytes) { return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes"); }

bool misaligned(const void* pointer, size_t alignment) {
  return alignment > 1 && reinterpret_cast<uintptr_t>(pointer) % alignment != 0;
}

// Constants of the kernels' code: what the library that they are in was loaded to.
bool in_image_of(const void* code, const void* address) {
  struct Image {
    const void* code = nullptr;
    uintptr_t low = 0, high = 0;
  };
  static thread_local Image image;
  if (image.code != code) {
    image = {code, 0, 0};
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* result) {
          Image& found = *static_cast<Image*>(result);
          uintptr_t low = UINTPTR_MAX, high = 0;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& segment = info->dlpi_phdr[i];
            if (segment.p_type != PT_LOAD) continue;
            low = std::min<uintptr_t>(low, info->dlpi_addr + segment.p_vaddr);
            high = std::max<uintptr_t>(high, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
          }
          const auto here = reinterpret_cast<uintptr_t>(found.code);
          if (here < low || here >= high) return 0;
          found.low = low;
          found.high = high;
          return 1;
        },
        &image);
  }
  const auto at = reinterpret_cast<uintptr_t>(address);
  return at >= image.low && at < image.high;
}

[[noreturn]] void out_of_bounds(const void* pointer, size_t bytes, const char* what, Pc where) {
  std::string text = std::string(what) + " of " + bytes_text(bytes) + " at " + hex(pointer);
  Session& s = session();
  for (const auto* side : {"before", "past"}) {
    const auto* byte = static_cast<const unsigned char*>(pointer);
    // Guards are wide: what lies in one is near its tensor.
    constexpr ptrdiff_t kNear = 4096;
    if (Tensor* near = s.tensor_of(*side == 'b' ? byte + kNear : byte - kNear)) {
      const ptrdiff_t distance = *side == 'b' ? near->data - byte : byte + bytes - (near->data + near->bytes);
      fatal(Kind::kOutOfBounds, where,
            text + ": " + bytes_text(static_cast<size_t>(distance)) + " " + side + " " + near->name + ", which has " +
                bytes_text(near->bytes));
    }
  }
  if (Tensor* tensor = s.tensor_of(pointer)) {
    const size_t inside =
        static_cast<size_t>(tensor->data + tensor->bytes - static_cast<const unsigned char*>(pointer));
    fatal(Kind::kOutOfBounds, where, text + ": only " + bytes_text(inside) + " of " + tensor->name + " are left there");
  }
  fatal(Kind::kOutOfBounds, where, text + ": no tensor, shared memory or local variable of this thread lies there");
}

void note_writer(Tensor& tensor, size_t offset, size_t bytes, const char* what, Pc where) {
  Session& s = session();
  const Thread& thread = acting();
  const uint32_t id = writer_id(s.launch_id(), thread.cta->index, s.shape.threads, thread.index);
  for (size_t i = offset; i < offset + bytes; ++i) {
    const uint32_t before = __atomic_exchange_n(&tensor.writer[i], id, __ATOMIC_RELAXED);
    if (before != 0 && before != id && launch_of(before) == launch_of(id)) {
      report(Kind::kRace, where,
             std::string("WAW: ") + what + " by thread " + std::to_string(thread.index) + " of CTA " +
                 std::to_string(thread.cta->index) + " to byte " + std::to_string(i) + " of " + tensor.name +
                 ", which thread " + std::to_string(thread_of(before) % static_cast<unsigned>(s.shape.threads)) +
                 " of CTA " + std::to_string(thread_of(before) / static_cast<unsigned>(s.shape.threads)) +
                 " of the same launch wrote",
             __atomic_load_n(&tensor.writer_at[i], __ATOMIC_RELAXED));
    }
    __atomic_store_n(&tensor.writer_time[i], thread.now(), __ATOMIC_RELAXED);
    __atomic_store_n(&tensor.writer_at[i], where, __ATOMIC_RELAXED);
  }
}

// Whether the executing thread knows of what a thread of another CTA did by then: of its cluster, which meets.
bool knows_of_cluster(uint32_t writer, uint32_t time) {
  const Thread& thread = acting();
  const Cluster& cluster = *thread.cta->cluster;
  const unsigned threads = static_cast<unsigned>(session().shape.threads);
  const unsigned rank = thread_of(writer) / threads - cluster.ctas.front()->index;
  if (rank >= cluster.ctas.size()) return false;
  return thread.knows(thread_agent(cluster.ctas[rank]->threads[thread_of(writer) % threads]), time, false);
}

void check_written(const Tensor& tensor, size_t offset, size_t bytes, bool atomic, const char* what, Pc where) {
  const Session& s = session();
  const unsigned threads = static_cast<unsigned>(s.shape.threads);
  for (size_t i = offset; i < offset + bytes; ++i) {
    const uint32_t writer = __atomic_load_n(&tensor.writer[i], __ATOMIC_RELAXED);
    if (writer == 0) {
      report(Kind::kUninitialised, where,
             std::string(what) + " of byte " + std::to_string(i) + " of " + tensor.name + ", which nobody wrote");
      return;
    }
    if (!atomic && launch_of(writer) == s.launch_id() && thread_of(writer) / threads != acting().cta->index &&
        !knows_of_cluster(writer, __atomic_load_n(&tensor.writer_time[i], __ATOMIC_RELAXED)) &&
        !(s.shape.cluster_ctas == 1 &&
          knows_of_cta(acting(), thread_of(writer) / threads, static_cast<int>(thread_of(writer) % threads),
                       __atomic_load_n(&tensor.writer_time[i], __ATOMIC_RELAXED)))) {
      report(Kind::kRace, where,
             std::string("RAW: ") + what + " by CTA " + std::to_string(acting().cta->index) + " of byte " +
                 std::to_string(i) + " of " + tensor.name + ", which CTA " +
                 std::to_string(thread_of(writer) / threads) + " of the same launch wrote",
             __atomic_load_n(&tensor.writer_at[i], __ATOMIC_RELAXED));
      return;
    }
  }
}

void touch_plain_shared(const void* pointer, size_t bytes, size_t alignment, Access access, Pc where) {
  const SharedAddress address =
      shared_address(pointer, bytes, alignment, access == Access::kRead ? "load" : "store", where);
  Thread& thread = *current();
  touch_shared(thread_actor(thread, access == Access::kRead ? "load" : "store", where), address, bytes, access);
  if (session().schedule.conflicts) {
    thread.cta->warps[static_cast<size_t>(thread.warp())].conflicts.add(where, thread.lane(), address.offset, bytes,
                                                                        access);
  }
}

bool in_arena(const Cluster& cluster, const void* pointer) {
  const auto offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(cluster.arena.get());
  return offset < cluster.ctas.size() * kSharedStride;
}

}  // namespace

// Every load and store of the kernels' code that is not an instruction of the PTX layer.
void touch_plain(const void* pointer, size_t bytes, size_t alignment, Access access, Pc where) {
  Thread* thread = current();
  if (thread == nullptr) return;
  Cluster& cluster = *thread->cta->cluster;
  const auto* byte = static_cast<const char*>(pointer);
  const char* stack = cluster.stacks.bottom(thread->cta->rank * session().shape.threads + thread->index);
  if (byte >= stack && byte < stack + kStackBytes) return;
  if (in_arena(cluster, pointer)) {
    touch_plain_shared(pointer, bytes, alignment, access, where);
    return;
  }
  const char* what = access == Access::kRead ? "load" : "store";
  if (session().tensor_of(pointer) == nullptr && access == Access::kRead) {
    const Session& s = session();
    const auto* params = static_cast<const char*>(s.params);
    if ((byte >= params && byte < params + s.params_bytes) ||
        in_image_of(reinterpret_cast<const void*>(s.entry), pointer))
      return;
  }
  touch_global(pointer, bytes, alignment, access, what, where);
}

void copy_vector(void* to, const void* from, size_t bytes) {
  const Pc where = EMU_CALLER;
  if (in_kernel()) {
    for (const void* pointer : {const_cast<const void*>(to), from}) {
      if (misaligned(pointer, bytes)) {
        fatal(Kind::kMisaligned, where, "a vector of " + bytes_text(bytes) + " at " + hex(pointer));
      }
    }
    if (!kSanitized) {
      touch_plain(from, bytes, bytes, Access::kRead, where);
      touch_plain(to, bytes, bytes, Access::kWrite, where);
    }
  }
  std::memcpy(to, from, bytes);
}

SharedAddress shared_address(const void* pointer, size_t bytes, size_t alignment, const char* what, Pc where) {
  Cluster& cluster = *acting().cta->cluster;
  if (!in_arena(cluster, pointer)) {
    fatal(Kind::kOutOfBounds, where, std::string(what) + " at " + hex(pointer) + ", which is not in shared memory");
  }
  const auto offset = static_cast<uint64_t>(reinterpret_cast<const unsigned char*>(pointer) - cluster.arena.get());
  Cta& cta = *cluster.ctas[offset / kSharedStride];
  const auto in_cta = static_cast<uint32_t>(offset % kSharedStride);
  if (in_cta + bytes > static_cast<size_t>(session().shape.smem_bytes)) {
    fatal(Kind::kOutOfBounds, where,
          std::string(what) + " of " + bytes_text(bytes) + " at byte " + std::to_string(in_cta) +
              " of shared memory, of which the CTA has " + std::to_string(session().shape.smem_bytes));
  }
  if (alignment > 1 && in_cta % alignment != 0) {
    fatal(Kind::kMisaligned, where,
          std::string(what) + " at byte " + std::to_string(in_cta) + " of shared memory must be aligned to " +
              bytes_text(alignment));
  }
  if (cta.live == 0) {
    fatal(Kind::kProtocol, where,
          std::string(what) + " in the shared memory of CTA " + std::to_string(cta.index) +
              " of the cluster, which has exited");
  }
  return {&cta, in_cta};
}

SharedAddress shared_address(uint32_t address, size_t bytes, size_t alignment, const char* what, Pc where) {
  return shared_address(acting().cta->shared + address, bytes, alignment, what, where);
}

unsigned char* data(SharedAddress address) { return address.cta->shared + address.offset; }

// The build with AddressSanitizer doesn't see plain accesses: what it knew of an address would be half the truth.
void touch_shared(const Actor& actor, SharedAddress address, size_t bytes, Access access) {
  if (kSanitized) return;
  address.cta->shadow.touch(*address.cta, actor, address.offset, bytes, access);
}

void count_wavefronts(Pc where, const char* what, int wavefronts, int ideal) {
  session().findings.add_wavefronts(where, what, {1, wavefronts, ideal});
}

void touch_global(const void* pointer, size_t bytes, size_t alignment, Access access, const char* what, Pc where) {
  Tensor* tensor = session().tensor_of(pointer);
  const auto* byte = static_cast<const unsigned char*>(pointer);
  if (tensor == nullptr || byte + bytes > tensor->data + tensor->bytes) out_of_bounds(pointer, bytes, what, where);
  if (misaligned(pointer, alignment)) {
    fatal(Kind::kMisaligned, where,
          std::string(what) + " of " + bytes_text(bytes) + " at byte " + std::to_string(byte - tensor->data) + " of " +
              tensor->name + ", address " + hex(pointer) + ", must be aligned to " + bytes_text(alignment));
  }
  const auto offset = static_cast<size_t>(byte - tensor->data);
  if (!tensor->writable) {
    if (access != Access::kRead) {
      fatal(Kind::kReadOnly, where,
            std::string(what) + " to byte " + std::to_string(offset) + " of the operand " + tensor->name);
    }
  } else if (kSanitized) {
    return;
  } else if (access == Access::kWrite) {
    note_writer(*tensor, offset, bytes, what, where);
  } else {
    check_written(*tensor, offset, bytes, access == Access::kAtomic, what, where);
  }
}

void report(Kind kind, Pc where, const std::string& text, Pc other) {
  Findings& findings = session().findings;
  if (!findings.count(kind, where, other)) return;
  const Thread* thread = acting_or_null();
  const std::string who =
      thread ? " [thread " + std::to_string(thread->index) + " of CTA " + std::to_string(thread->cta->index) + "]" : "";
  findings.explain(kind, where, other, text + who);
}

void fatal(Kind kind, Pc where, const std::string& text, Pc other) {
  report(kind, where, text, other);
  abandon();
}

}  // namespace emu
