// Threads that run until they wait for another one: a stack each, and a switch that costs a few nanoseconds.
#ifndef LARGEOUT_CUDA_EMULATOR_FIBER_H_
#define LARGEOUT_CUDA_EMULATOR_FIBER_H_

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace largeout {
namespace emulation {

class Fiber {
 public:
  static constexpr size_t kStackBytes = size_t{128} << 10;

  Fiber();
  // The next Resume calls body, which must not return: it ends with Suspend(true).
  void Start(void (*body)());
  // Runs it until it suspends itself.
  void Resume();
  // Inside of one: back to who resumed it. `last`: it is not resumed again.
  void Suspend(bool last = false);

  bool Owns(uintptr_t address) const { return address - stack_ < kStackBytes; }

 private:
  uintptr_t stack_, top_;
#if defined(__x86_64__)
  void* stopped_ = nullptr;
#else
  ucontext_t stopped_;
#endif
  void* fake_stack_ = nullptr;  // AddressSanitizer's
};

}  // namespace emulation
}  // namespace largeout

#endif  // LARGEOUT_CUDA_EMULATOR_FIBER_H_
