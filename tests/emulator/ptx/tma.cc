// The copy engine. Hazards in shared memory are judged when a copy is issued; its bytes move when it completes.
#include "ptx/tma.cuh"

#include <algorithm>
#include <cstring>
#include <deque>

#include "ptx/cluster_peers.h"
#include "ptx/mbarrier_state.h"
#include "ptx/shared_rows.h"
#include "ptx/tensor_map.h"

namespace emu {
namespace {

using jaxgemm::ptx::kChunkBytes;
using jaxgemm::ptx::span_bytes;
using jaxgemm::ptx::Swizzle;
using jaxgemm::ptx::swizzled;

constexpr size_t kBoxAlignment = 128;  // PTX ISA, "cp.async.bulk.tensor": of shared memory

SharedAddress box_address(const void* s_box, const TensorMap& map, const char* what, Pc where) {
  const SharedAddress box = own_shared_address(s_box, map.box_bytes(), kBoxAlignment, what, where);
  const auto pattern = static_cast<uint32_t>(8 * span_bytes(map.swizzle));
  if (map.swizzle != Swizzle::kNone && box.offset % pattern != 0) {
    report(Kind::kProtocol, where,
           std::string(what) + " of a box with a swizzle of " + std::to_string(span_bytes(map.swizzle)) +
               " bytes at byte " + std::to_string(box.offset) + " of shared memory, which is not a multiple of " +
               std::to_string(pattern) + ": the pattern begins elsewhere in it");
  }
  return box;
}

// A box's row begins at an address of 16-byte alignment, inside of the tensor or not: an H200 calls any other
// coordinate an illegal instruction. PTX ISA doesn't say so.
void check_origin(const TensorMap& map, const BoxOrigin& origin, const char* what, Pc where) {
  const int64_t byte = int64_t{origin.coordinates[0]} * map.element_bytes;
  if (byte % kChunkBytes != 0) {
    fatal(Kind::kMisaligned, where,
          std::string(what) + " of a box at innermost coordinate " + std::to_string(origin.coordinates[0]) + ", byte " +
              std::to_string(byte) + " of a row, which is not a multiple of " + std::to_string(kChunkBytes));
  }
}

// Stores, unlike loads, may not begin before the tensor: that is an illegal instruction on an H200 too.
void check_not_before(const BoxOrigin& origin, Pc where) {
  for (int i = 0; i < origin.rank; ++i) {
    if (origin.coordinates[i] >= 0) continue;
    fatal(Kind::kProtocol, where,
          "TMA store of a box at coordinate " + std::to_string(origin.coordinates[i]) + " of dimension " +
              std::to_string(i) + ": only loads may begin before the tensor");
  }
}

// What one row of a box, contiguous in global memory, has inside of the tensor.
struct Row {
  unsigned char* address = nullptr;           // of its first byte inside
  uint32_t first_byte = 0, inside_bytes = 0;  // of the row
};

Row row_of(const TensorMap& map, const BoxOrigin& origin, uint32_t row) {
  const int64_t x = origin.coordinates[0];
  const int64_t y = int64_t{origin.coordinates[1]} + row % map.box[1];
  const int64_t z = int64_t{origin.coordinates[2]} + row / map.box[1];
  const int64_t first = std::max<int64_t>(x, 0);
  const int64_t end = std::min<int64_t>(x + map.box[0], int64_t{map.last_index[0]} + 1);
  if (first >= end || !map.contains(1, y) || !map.contains(2, z)) return {};
  return {map.address + static_cast<uint64_t>(z) * map.strides[2] + static_cast<uint64_t>(y) * map.strides[1] +
              static_cast<uint64_t>(first) * map.element_bytes,
          static_cast<uint32_t>(first - x) * map.element_bytes, static_cast<uint32_t>(end - first) * map.element_bytes};
}

// Calls move(bytes of a chunk in shared memory, their place in the row) for all chunks of a row.
template <class Move>
void each_chunk(const TensorMap& map, SharedAddress box, uint32_t row, Move&& move) {
  for (uint32_t byte = 0; byte < map.row_bytes(); byte += kChunkBytes) {
    move(data({box.cta, swizzled(map.swizzle, box.offset + row * map.row_bytes() + byte)}), byte);
  }
}

// To nearest, ties to even, denormal numbers too; what is too large becomes infinite, and all that is not a number the
// same one. Seen on an H200.
void round_to_tf32(unsigned char* bytes, uint32_t size) {
  constexpr uint32_t kDropped = 0x1FFF, kHalf = 0x1000, kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;
  constexpr uint32_t kNan = 0x7FFFE000;
  for (uint32_t at = 0; at < size; at += sizeof(uint32_t)) {
    uint32_t bits;
    std::memcpy(&bits, bytes + at, sizeof bits);
    if ((bits & kMagnitude) > kInfinity) {
      bits = kNan;
    } else {
      const uint32_t odd = bits / (kDropped + 1) % 2;
      bits = (bits + kHalf - 1 + odd) & ~kDropped;
    }
    std::memcpy(bytes + at, &bits, sizeof bits);
  }
}

void load_box(const TensorMap& map, const BoxOrigin& origin, SharedAddress box, Pc where) {
  std::vector<unsigned char> bytes(map.row_bytes());
  for (uint32_t row = 0; row < map.rows(); ++row) {
    std::fill(bytes.begin(), bytes.end(), 0);  // what is out of bounds
    const Row inside = row_of(map, origin, row);
    if (inside.inside_bytes > 0) {
      touch_global(inside.address, inside.inside_bytes, 1, Access::kRead, "TMA load", where);
      std::memcpy(bytes.data() + inside.first_byte, inside.address, inside.inside_bytes);
      if (map.rounds_to_tf32) round_to_tf32(bytes.data() + inside.first_byte, inside.inside_bytes);
    }
    each_chunk(map, box, row,
               [&](unsigned char* chunk, uint32_t byte) { std::memcpy(chunk, bytes.data() + byte, kChunkBytes); });
  }
}

// Chunks that begin inside of the tensor are stored whole: a row that ends within one is overwritten up to the chunk's
// end. Seen on an H200; PTX ISA speaks of elements.
void store_box(const TensorMap& map, const BoxOrigin& origin, SharedAddress box, Pc where) {
  std::vector<unsigned char> bytes(map.row_bytes());
  for (uint32_t row = 0; row < map.rows(); ++row) {
    const Row inside = row_of(map, origin, row);
    if (inside.inside_bytes == 0) continue;
    each_chunk(map, box, row,
               [&](unsigned char* chunk, uint32_t byte) { std::memcpy(bytes.data() + byte, chunk, kChunkBytes); });
    const uint32_t stored = (inside.inside_bytes + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
    touch_global(inside.address, stored, kChunkBytes, Access::kWrite, "TMA store", where);
    std::memcpy(inside.address, bytes.data() + inside.first_byte, stored);
  }
}

std::vector<Cta*> targets(Cta& own, int cta_mask, Pc where) {
  if (cta_mask == kOwnCta) return {&own};
  Cluster& cluster = cluster_of(own);
  if (cta_mask == 0 || cta_mask >> size_of(cluster) != 0) {
    fatal(Kind::kProtocol, where,
          "TMA multicast with CTA mask " + std::to_string(cta_mask) + " in a cluster of " +
              std::to_string(size_of(cluster)));
  }
  std::vector<Cta*> ctas;
  for (int rank = 0; rank < size_of(cluster); ++rank) {
    if (cta_mask >> rank & 1) ctas.push_back(&peer_of(own, rank, "TMA multicast", where));
  }
  return ctas;
}

// The stores of a thread, numbered as they are issued.
struct BulkStores {
  uint32_t issued = 0, completed = 0, waited = 0;
  std::deque<uint32_t> groups;  // the last store of each group that was not waited for
  WaitList waiting;
  Pc where = nullptr;  // of the last one
  bool checked_at_exit = false;
};

BulkStores& stores_of(Thread& thread) {
  BulkStores& stores = state<BulkStores>(thread);
  if (!stores.checked_at_exit) {
    stores.checked_at_exit = true;
    at_exit(cta_of(thread), [&stores, &thread] {
      if (stores.waited == stores.issued) return;
      report(Kind::kProtocol, stores.where,
             "the CTA exits before thread " + std::to_string(index_of(thread)) + " waited for " +
                 std::to_string(stores.issued - stores.waited) + " TMA stores, which read its shared memory");
    });
  }
  return stores;
}

}  // namespace

void tma_prefetch_map(const CUtensorMap& map) { tensor_map_of(map, 0, "prefetch.tensormap", EMU_CALLER); }

void tma_load(void* s_box, const CUtensorMap& opaque, Mbarrier& s_barrier, BoxOrigin origin, int cta_mask) {
  const Pc where = EMU_CALLER;
  constexpr const char* kWhat = "TMA load";
  const TensorMap& map = tensor_map_of(opaque, origin.rank, kWhat, where);
  check_origin(map, origin, kWhat, where);
  const SharedAddress own_box = box_address(s_box, map, kWhat, where);
  const SharedAddress own_barrier = mbarrier_address(&s_barrier, kWhat, where);
  for (Cta* cta : targets(*own_box.cta, cta_mask, where)) {
    const SharedAddress box = {cta, own_box.offset};
    MbarrierState& barrier = mbarrier_reached({cta, own_barrier.offset}, kWhat, where);
    const uint32_t number = barrier.issue_copy(where);
    touch_shared(async_actor(barrier.agent, number, /*async_proxy=*/true, kWhat, where), box, map.box_bytes(),
                 Access::kWrite);
    submit(Engine::kTma, 0, [map, origin, box, &barrier, number, where] {
      load_box(map, origin, box, where);
      barrier.complete_copy(number, map.box_bytes(), where);
    });
  }
}

void tma_store(const CUtensorMap& opaque, const void* s_box, BoxOrigin origin) {
  const Pc where = EMU_CALLER;
  constexpr const char* kWhat = "TMA store";
  const TensorMap& map = tensor_map_of(opaque, origin.rank, kWhat, where);
  check_origin(map, origin, kWhat, where);
  check_not_before(origin, where);
  const SharedAddress box = box_address(s_box, map, kWhat, where);
  const Agent agent = bulk_agent(self());
  BulkStores& stores = stores_of(self());
  stores.where = where;
  ++stores.issued;
  touch_shared(async_actor(agent, stores.issued, /*async_proxy=*/true, kWhat, where), box, map.box_bytes(),
               Access::kRead);
  submit(Engine::kBulkStore, agent + uint64_t{1}, [map, origin, box, &stores, where] {
    store_box(map, origin, box, where);
    ++stores.completed;
    wake_all(stores.waiting);
  });
}

void tma_commit_group() {
  BulkStores& stores = stores_of(self());
  stores.groups.push_back(stores.issued);
}

// When a store has read shared memory it has written global memory too.
void tma_wait_group(size_t pending, const char* what) {
  const Pc where = EMU_CALLER;
  BulkStores& stores = stores_of(self());
  while (stores.groups.size() > pending) {
    while (stores.completed < stores.groups.front()) sleep(stores.waiting, what, where);
    stores.waited = stores.groups.front();
    stores.groups.pop_front();
  }
  observe(bulk_agent(self()), stores.waited);
}

}  // namespace emu
