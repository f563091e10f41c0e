#include "core/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#include "core/poison.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// emu_switch(from, to): saves the callee-saved registers on the stack, its pointer in *from, and goes on at `to`. What
// a new stack must hold to be switched to is in Fiber::start(). System V ABI for x86-64 and AAPCS64.
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size emu_switch, . - emu_switch

.p2align 4
.type emu_begin, @function
emu_begin:
  movq %r12, %rdi
  callq *%r13
  ud2
.size emu_begin, . - emu_begin
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.type emu_switch, %function
emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emu_switch, . - emu_switch

.p2align 4
.type emu_begin, %function
emu_begin:
  mov x0, x19
  blr x20
  brk #1
.size emu_begin, . - emu_begin
)");
#else
#error "the emulator's context switch is written for x86-64 and AArch64"
#endif

extern "C" {
void emu_switch(void** from, void* to);
void emu_begin();
}

namespace emu {
namespace {

void run_fiber(void* fiber) { static_cast<Fiber*>(fiber)->run(); }

}  // namespace

Stacks::~Stacks() {
  if (base_) munmap(base_, count_ * kStackBytes);
}

void Stacks::grow(int count) {
  if (count <= count_) return;
  if (base_) munmap(base_, count_ * kStackBytes);
  void* mapped = mmap(nullptr, count * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(mapped);
  count_ = count;
  for (int i = 0; i < count; ++i) mprotect(bottom(i), static_cast<size_t>(getpagesize()), PROT_NONE);
}

void Fiber::start(char* stack_bottom, void (*entry)(void*), void* argument) {
  entry_ = entry;
  argument_ = argument;
  stack_bottom_ = stack_bottom;
  fake_stack_ = nullptr;
  permit(stack_bottom, kStackBytes);  // the frames of the fiber before, which were left and never returned from
  auto* top = reinterpret_cast<uint64_t*>(stack_bottom + kStackBytes);
#if defined(__x86_64__)
  // As emu_switch leaves it: r15, r14, r13, r12, rbx, rbp, return address. The ABI wants the stack aligned to 16 bytes
  // at emu_begin's call, which comes after the return has popped its address.
  uint64_t* frame = top - 9;
  frame[2] = reinterpret_cast<uint64_t>(&run_fiber);
  frame[3] = reinterpret_cast<uint64_t>(this);
  frame[6] = reinterpret_cast<uint64_t>(&emu_begin);
#else
  uint64_t* frame = top - 20;  // x19 ... x30, d8 ... d15
  frame[0] = reinterpret_cast<uint64_t>(this);
  frame[1] = reinterpret_cast<uint64_t>(&run_fiber);
  frame[11] = reinterpret_cast<uint64_t>(&emu_begin);
#endif
  stack_pointer_ = frame;
}

void Fiber::resume() {
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_bottom_, kStackBytes);
  emu_switch(&resumer_, stack_pointer_);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
  emu_switch(&resumer_, stack_pointer_);
#endif
}

void Fiber::suspend() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, resumer_bottom_, resumer_bytes_);
  emu_switch(&stack_pointer_, resumer_);
  __sanitizer_finish_switch_fiber(fake_stack_, &resumer_bottom_, &resumer_bytes_);
#else
  emu_switch(&stack_pointer_, resumer_);
#endif
}

void Fiber::run() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &resumer_bottom_, &resumer_bytes_);
#endif
  entry_(argument_);
}

}  // namespace emu
