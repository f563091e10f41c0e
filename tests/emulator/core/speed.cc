// How fast the emulator is: a context switch, against the C library's, and the instruction that kernels are made of.
#include <ucontext.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/fiber.h"
#include "core/runtime.h"
#include "core/session.h"
#include "ptx/mma.cuh"

namespace {

double seconds_of(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// --- context switches
// -------------------------------------------------------------------------------------------------

constexpr int kRoundTrips = 1000000, kUcontextRoundTrips = 200000;  // of two switches each

double fiber_switch_ns() {
  emu::Stacks stacks;
  stacks.grow(1);
  static thread_local emu::Fiber fiber;
  const auto entry = [](void*) {
    for (;;) fiber.suspend();
  };
  fiber.start(stacks.bottom(0), entry, nullptr);
  fiber.resume();  // the first touch of the stack is not measured
  const double seconds = seconds_of([] {
    for (int i = 0; i < kRoundTrips; ++i) fiber.resume();
  });
  return seconds / (2.0 * kRoundTrips) * 1e9;
}

double ucontext_switch_ns() {
  static thread_local ucontext_t outside, inside;
  std::vector<char> stack(64 * 1024);
  getcontext(&inside);
  inside.uc_stack.ss_sp = stack.data();
  inside.uc_stack.ss_size = stack.size();
  inside.uc_link = nullptr;
  makecontext(
      &inside,
      +[] {
        for (;;) swapcontext(&inside, &outside);
      },
      0);
  swapcontext(&outside, &inside);
  const double seconds = seconds_of([] {
    for (int i = 0; i < kUcontextRoundTrips; ++i) swapcontext(&outside, &inside);
  });
  return seconds / (2.0 * kUcontextRoundTrips) * 1e9;
}

// --- instructions
// -----------------------------------------------------------------------------------------------------

constexpr int kMmas = 50000;

void multiply_often(void*) {
  float d[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  for (int i = 0; i < kMmas; ++i) jaxgemm::ptx::mma_m16n8k16<__nv_bfloat16>(d, a, b);
}

double mmas_per_second() {
  emu::Session session({});
  emu::host_session() = &session;
  const double seconds = seconds_of([] { (void)emu::launch(1, 32, 0, 1, 0, multiply_often, nullptr, 0); });
  emu::host_session() = nullptr;
  return kMmas / seconds;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* emu_speed() {
  static thread_local std::string answer;
  answer = "{\"switch_ns\": " + std::to_string(fiber_switch_ns()) +
           ", \"ucontext_switch_ns\": " + std::to_string(ucontext_switch_ns()) +
           ", \"mma_m16n8k16_per_second\": " + std::to_string(mmas_per_second()) + "}";
  return answer.c_str();
}
