// wgmma. Hazards in shared memory are judged at issue; operands are read when a multiplication completes. The results
// reach a thread's registers in its own wgmma_wait(): until then they hold a NaN (of int32, a large number), so that
// reading too early shows in every schedule.
#include "ptx/wgmma.cuh"

#include <algorithm>
#include <array>
#include <deque>

#include "ptx/matrix_descriptor.h"
#include "ptx/wgmma_product.h"

namespace emu {
namespace {

using jaxgemm::ptx::accumulator_element;
using jaxgemm::ptx::ElementOf;
using jaxgemm::ptx::fragment_a_element;
using jaxgemm::ptx::kChunkBytes;
using jaxgemm::ptx::kWarpgroupThreads;
using jaxgemm::ptx::kWgmmaM;
using jaxgemm::ptx::kWgmmaStepBytes;

constexpr uint32_t kPoison = 0x7FDEAD00;  // a quiet NaN that no arithmetic makes
constexpr int kWarp = 32, kRowsOfWarp = 16;

// D of multiplications that follow each other, and what its registers hold.
struct Accumulators {
  int n = 0;
  std::array<uint32_t*, kWarpgroupThreads> registers = {};
  std::array<bool, kWarpgroupThreads> delivered = {};  // the thread has waited: the registers are its own
  uint32_t last = 0;                                   // number of the last multiplication issued
  std::vector<uint32_t> values;                        // (64, n): float32 or int32, as bits

  uint32_t& value(int thread, int i) {
    const ElementOf element = accumulator_element(thread, i);
    return values[static_cast<size_t>(element.row * n + element.col)];
  }
};

// What is known by who waited for multiplications up to `number`: one object for all threads of the warpgroup, which
// learn the same.
struct Completion {
  uint32_t number = 0;
  Clock clock;
};

struct WarpgroupState {
  Agent agent = 0;
  uint32_t issued = 0, completed = 0;
  Completion completion;  // the last one that was waited for
  std::vector<std::shared_ptr<Accumulators>> accumulators;
  WaitList waiting;
  Pc where = nullptr;  // of the last one issued
};

struct WarpgroupStates {
  std::deque<WarpgroupState> all;
};

struct ThreadState {
  bool fenced = false;  // since its last wait
  bool ever_fenced = false;
  uint32_t issued = 0, committed = 0, waited = 0;  // numbers of the warpgroup's multiplications
  std::deque<uint32_t> groups;                     // the last multiplication of each that was not waited for
};

struct Lane {
  WgmmaShape shape;
  Thread* thread;
  ThreadState* state;
  uint32_t* d;
  const uint32_t* a;
  uint64_t descriptor_a, descriptor_b;
  int scale_d;
};
using Lanes = std::array<Lane*, kWarpgroupThreads>;

// One multiplication between issue and completion.
struct Multiplication {
  WgmmaShape shape;
  bool accumulate;
  std::vector<OperandChunk> chunks_a, chunks_b;
  std::vector<float> a;  // (64, K), if it came in registers
  std::shared_ptr<Accumulators> d;
};

void check_at_exit(Cta& cta, WarpgroupStates& states) {
  at_exit(cta, [&states] {
    for (WarpgroupState& warpgroup : states.all) {
      const auto waited = [&](const auto& d) {
        return std::all_of(d->delivered.begin(), d->delivered.end(), [](bool delivered) { return delivered; });
      };
      if (std::all_of(warpgroup.accumulators.begin(), warpgroup.accumulators.end(), waited)) continue;
      report(Kind::kProtocol, warpgroup.where,
             "the CTA exits before all threads of warpgroup " + std::to_string(&warpgroup - &states.all[0]) +
                 " waited for its wgmmas");
    }
  });
}

WarpgroupState& warpgroup_of(Thread& thread) {
  Cta& cta = cta_of(thread);
  WarpgroupStates& states = state<WarpgroupStates>(cta);
  if (states.all.empty()) check_at_exit(cta, states);
  const auto at = static_cast<size_t>(index_of(thread) / kWarpgroupThreads);
  while (states.all.size() <= at) {
    states.all.emplace_back().agent = new_agent(cluster_of(cta));
  }
  return states.all[at];
}

std::string thread_text(const Lane& lane) { return "thread " + std::to_string(index_of(*lane.thread)); }

// --- issue -----------------------------------------------------------------------------------------------------------

void check_uniform(const Lanes& lanes, Pc where) {
  for (const Lane* lane : lanes) {
    const Lane& first = *lanes[0];
    if (lane->shape == first.shape && lane->descriptor_a == first.descriptor_a &&
        lane->descriptor_b == first.descriptor_b && (lane->scale_d != 0) == (first.scale_d != 0)) {
      continue;
    }
    fatal(Kind::kDivergence, where,
          thread_text(*lane) + " and " + thread_text(first) +
              " execute one wgmma with different shapes, descriptors or scale_d");
  }
}

// PTX ISA, "wgmma.fence": before the first wgmma, and between an access to registers and the wgmma that uses them,
// unless all that accesses them are wgmmas of one shape.
void check_fence(const Lane& lane, bool changed, Pc where) {
  const ThreadState& thread = *lane.state;
  const char* why = nullptr;
  if (!thread.ever_fenced) {
    why = "without wgmma.fence before its first one";
  } else if (changed && !thread.fenced) {
    why = "on accumulators that it changed, without wgmma.fence since";
  } else if (lane.a != nullptr && !thread.fenced) {
    why = "with A in registers, without wgmma.fence since its last wait";
  }
  if (why) report(Kind::kProtocol, where, thread_text(lane) + " executes wgmma " + why);
}

std::shared_ptr<Accumulators> accumulators_of(WarpgroupState& warpgroup, const Lanes& lanes) {
  const int n = lanes[0]->shape.n;
  for (auto& known : warpgroup.accumulators) {
    if (known->registers[0] == lanes[0]->d && known->n == n) return known;
  }
  // Registers of other accumulators that these overlap are dead: variables share stack memory as they share registers.
  std::erase_if(warpgroup.accumulators, [&](const auto& other) {
    return other->registers[0] < lanes[0]->d + n / 2 && lanes[0]->d < other->registers[0] + other->n / 2;
  });
  auto fresh = std::make_shared<Accumulators>();
  fresh->n = n;
  fresh->delivered.fill(true);
  fresh->values.resize(static_cast<size_t>(kWgmmaM * n), kPoison);
  for (size_t t = 0; t < lanes.size(); ++t) fresh->registers[t] = lanes[t]->d;
  return warpgroup.accumulators.emplace_back(std::move(fresh));
}

// Takes D out of the registers where they are the thread's own, and poisons them.
void take_registers(Accumulators& d, const Lanes& lanes, bool accumulate, Pc where) {
  for (int t = 0; t < kWarpgroupThreads; ++t) {
    const Lane& lane = *lanes[static_cast<size_t>(t)];
    bool changed = false;
    for (int i = 0; i < d.n / 2; ++i) {
      uint32_t& value = d.value(t, i);
      if (d.delivered[static_cast<size_t>(t)]) {
        changed |= d.last != 0 && accumulate && lane.d[i] != value;
        value = lane.d[i];
      } else if (lane.d[i] != kPoison) {
        report(Kind::kProtocol, where,
               thread_text(lane) + " changed accumulator " + std::to_string(i) + " while a wgmma was working on it");
      }
      lane.d[i] = kPoison;
    }
    d.delivered[static_cast<size_t>(t)] = false;
    check_fence(lane, changed, where);
  }
}

// Each warp reads its own rows of A and all of B; what counts is what that warp knows.
void touch_operands(const Multiplication& op, const Lanes& lanes, Agent agent, uint32_t number, Pc where) {
  std::array<Actor, kWarpgroupThreads / kWarp> warps;
  for (size_t w = 0; w < warps.size(); ++w) {
    warps[w] = async_actor(agent, number, /*async_proxy=*/true, "wgmma", where);
    warps[w].issuer = lanes[w * kWarp]->thread;
  }
  for (const OperandChunk& chunk : op.chunks_a) {
    touch_shared(warps[static_cast<size_t>(chunk.mn / kRowsOfWarp)], chunk.at, kChunkBytes, Access::kRead);
  }
  for (const OperandChunk& chunk : op.chunks_b) {
    for (const Actor& warp : warps) touch_shared(warp, chunk.at, kChunkBytes, Access::kRead);
  }
}

std::vector<float> fragment_values(const Lanes& lanes, WgmmaElement type) {
  const int size = element_bytes(type), depth = kWgmmaStepBytes / size;
  std::vector<float> a(static_cast<size_t>(kWgmmaM * depth));
  for (int t = 0; t < kWarpgroupThreads; ++t) {
    for (int i = 0; i < 4; ++i) {
      const ElementOf first = fragment_a_element(size, t, i, 0);
      decode(type, &lanes[static_cast<size_t>(t)]->a[i], sizeof(uint32_t),
             &a[static_cast<size_t>(first.row * depth + first.col)], 1);
    }
  }
  return a;
}

// --- completion ------------------------------------------------------------------------------------------------------

// Elements (mn, k) of an operand, at mn * mn_stride + k * k_stride.
void read_operand(const std::vector<OperandChunk>& chunks, Major major, WgmmaElement type, float* values, int mn_stride,
                  int k_stride) {
  const int step = major == Major::kMN ? mn_stride : k_stride;
  for (const OperandChunk& chunk : chunks) {
    decode(type, data(chunk.at), kChunkBytes, values + chunk.mn * mn_stride + chunk.k * k_stride, step);
  }
}

void complete(Multiplication& op) {
  const WgmmaShape& shape = op.shape;
  const int n = shape.n, depth = kWgmmaStepBytes / element_bytes(shape.a);
  if (op.a.empty()) {
    op.a.resize(static_cast<size_t>(kWgmmaM * depth));
    read_operand(op.chunks_a, shape.major_a, shape.a, op.a.data(), depth, 1);
  }
  std::vector<float> b(static_cast<size_t>(depth * n));
  read_operand(op.chunks_b, shape.major_b, shape.b, b.data(), 1, n);
  if (!op.accumulate) std::fill(op.d->values.begin(), op.d->values.end(), 0);  // in either type
  multiply(shape.a, op.a.data(), b.data(), op.d->values.data(), kWgmmaM, n, depth);
}

void issue(const Lanes& lanes, Pc where) {
  check_uniform(lanes, where);
  const Lane& first = *lanes[0];
  WarpgroupState& warpgroup = warpgroup_of(*first.thread);
  auto op = std::make_shared<Multiplication>();
  const WgmmaShape& shape = op->shape = first.shape;
  op->accumulate = first.scale_d != 0;
  op->chunks_b = operand_chunks(first.descriptor_b, shape.major_b, element_bytes(shape.b), shape.n, "wgmma's B", where);
  if (first.a) {
    op->a = fragment_values(lanes, shape.a);
  } else {
    op->chunks_a =
        operand_chunks(first.descriptor_a, shape.major_a, element_bytes(shape.a), kWgmmaM, "wgmma's A", where);
  }
  const uint32_t number = ++warpgroup.issued;
  warpgroup.where = where;
  touch_operands(*op, lanes, warpgroup.agent, number, where);
  op->d = accumulators_of(warpgroup, lanes);
  take_registers(*op->d, lanes, op->accumulate, where);
  op->d->last = number;
  for (Lane* lane : lanes) lane->state->issued = number;
  submit(Engine::kWgmma, warpgroup.agent + uint64_t{1}, [op, &warpgroup, number] {
    complete(*op);
    warpgroup.completed = number;
    wake_all(warpgroup.waiting);
  });
}

void learn(WarpgroupState& warpgroup, uint32_t waited) {
  if (warpgroup.completion.number != waited) {
    warpgroup.completion = {waited, {}};
    warpgroup.completion.clock.note(warpgroup.agent, waited);
  }
  acquire(warpgroup.completion.clock);
}

// The executing thread has waited: registers that nothing works on any more are its own again.
void deliver(WarpgroupState& warpgroup, uint32_t waited) {
  const int t = index_of(self()) % kWarpgroupThreads;
  for (auto& d : warpgroup.accumulators) {
    if (d->delivered[static_cast<size_t>(t)] || d->last > waited) continue;
    for (int i = 0; i < d->n / 2; ++i) d->registers[static_cast<size_t>(t)][i] = d->value(t, i);
    d->delivered[static_cast<size_t>(t)] = true;
  }
}

}  // namespace

void wgmma_fence() {
  ThreadState& thread = state<ThreadState>(self());
  thread.fenced = thread.ever_fenced = true;
}

void wgmma(WgmmaShape shape, void* d, const uint32_t* a, uint64_t descriptor_a, uint64_t descriptor_b, int scale_d) {
  const Pc where = EMU_CALLER;
  Thread& thread = self();
  Lane lane = {shape,        &thread, &state<ThreadState>(thread), static_cast<uint32_t*>(d), a, descriptor_a,
               descriptor_b, scale_d};
  together(warpgroup_meeting(), index_of(thread) % kWarpgroupThreads, "wgmma", where, lane, [&](auto&& lane_of) {
    Lanes lanes;
    for (int i = 0; i < kWarpgroupThreads; ++i) lanes[static_cast<size_t>(i)] = &lane_of(i);
    issue(lanes, where);
  });
}

void wgmma_commit() {
  ThreadState& thread = state<ThreadState>(self());
  thread.committed = thread.issued;
  thread.groups.push_back(thread.issued);
}

void wgmma_wait(size_t pending) {
  const Pc where = EMU_CALLER;
  // ".sync": no lane goes on before all of its warp are here, so that all have what they read before. What they wrote
  // is ordered here too, of which PTX says nothing.
  sync_warp(0xFFFFFFFF);
  ThreadState& thread = state<ThreadState>(self());
  if (thread.committed != thread.issued) {
    report(Kind::kProtocol, where,
           "wgmma.wait_group by thread " + std::to_string(index_of(self())) + " after " +
               std::to_string(thread.issued - thread.committed) +
               " wgmmas without wgmma.commit_group: it doesn't wait for them");
  }
  while (thread.groups.size() > pending) {
    thread.waited = thread.groups.front();
    thread.groups.pop_front();
  }
  if (thread.waited == 0) return;
  WarpgroupState& warpgroup = warpgroup_of(self());
  while (warpgroup.completed < thread.waited) sleep(warpgroup.waiting, "wgmma.wait_group", where);
  learn(warpgroup, thread.waited);
  deliver(warpgroup, thread.waited);
  thread.fenced = false;
}

}  // namespace emu
