#include "cuda_emulator/fiber.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace largeout {
namespace emulation {
namespace {

// Of the OS thread that resumes fibers.
thread_local void* resumer_fake_stack;
thread_local const void* resumer_stack;
thread_local size_t resumer_stack_bytes;

#if defined(__x86_64__)
thread_local void* resumer;
void (*body_to_start)();

// Keeps what a function must keep, on the old stack, and takes it from the new one.
extern "C" void LargeoutSwitchStack(void** old_stack, void* new_stack);
asm(R"(
.text
.globl LargeoutSwitchStack
.hidden LargeoutSwitchStack
.type LargeoutSwitchStack, @function
LargeoutSwitchStack:
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
  ret
.size LargeoutSwitchStack, .-LargeoutSwitchStack
)");
#else
thread_local ucontext_t resumer;
void (*body_to_start)();
#endif

#ifdef __SANITIZE_ADDRESS__
void Leave(void** fake_stack, const void* to, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, to, bytes);
}
void Arrive(void* fake_stack, const void** from, size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, from, bytes);
}
#else
void Leave(void**, const void*, size_t) {}
void Arrive(void*, const void**, size_t*) {}
#endif

void Begin() {
  Arrive(nullptr, &resumer_stack, &resumer_stack_bytes);
  body_to_start();
  std::abort();
}

}  // namespace

Fiber::Fiber() {
  void* stack = mmap(nullptr, kStackBytes + 4096, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) {
    std::printf("emulation: no memory for a stack\n");
    std::abort();
  }
  mprotect(stack, 4096, PROT_NONE);  // what overflows it
  stack_ = reinterpret_cast<uintptr_t>(stack) + 4096;
  // Tops of stacks at one distance would share a few sets of the caches.
  static unsigned fibers = 0;
  top_ = stack_ + kStackBytes - fibers++ * 832 % 4096 / 64 * 64;
}

void Fiber::Start(void (*body)()) {
  body_to_start = body;
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(reinterpret_cast<void*>(stack_),
                                kStackBytes);  // of a launch that was stopped
#endif
#if defined(__x86_64__)
  // As LargeoutSwitchStack leaves it, with Begin as the caller; there the stack is 8 more than a multiple
  // of 16.
  void** top = reinterpret_cast<void**>(top_) - 2;
  top[0] = reinterpret_cast<void*>(&Begin);
  top[1] = nullptr;
  std::memset(top - 6, 0, 6 * sizeof(void*));
  stopped_ = top - 6;
#else
  getcontext(&stopped_);
  stopped_.uc_stack.ss_sp = reinterpret_cast<void*>(stack_);
  stopped_.uc_stack.ss_size = kStackBytes;
  stopped_.uc_link = nullptr;
  makecontext(&stopped_, &Begin, 0);
#endif
  fake_stack_ = nullptr;
}

void Fiber::Resume() {
  Leave(&resumer_fake_stack, reinterpret_cast<void*>(stack_), kStackBytes);
#if defined(__x86_64__)
  LargeoutSwitchStack(&resumer, stopped_);
#else
  swapcontext(&resumer, &stopped_);
#endif
  Arrive(resumer_fake_stack, nullptr, nullptr);
}

void Fiber::Suspend(bool last) {
  Leave(last ? nullptr : &fake_stack_, resumer_stack, resumer_stack_bytes);
#if defined(__x86_64__)
  LargeoutSwitchStack(&stopped_, resumer);
#else
  swapcontext(&stopped_, &resumer);
#endif
  Arrive(fake_stack_, &resumer_stack, &resumer_stack_bytes);
}

}  // namespace emulation
}  // namespace largeout
