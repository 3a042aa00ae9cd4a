#include "common/isa.h"

#include <atomic>

#ifdef LARGEOUT_X86_LEVELS
#include <cpuid.h>
#endif

namespace largeout {
namespace {

#ifdef LARGEOUT_X86_LEVELS
// The instructions of v3 that __builtin_cpu_supports does not know in every compiler.
bool HasLzcntMovbeF16c() {
  constexpr unsigned kLzcnt = 1u << 5, kMovbe = 1u << 22, kF16c = 1u << 29;
  unsigned a, b, basic, extended, d;
  return __get_cpuid(1, &a, &b, &basic, &d) && __get_cpuid(0x80000001, &a, &b, &extended, &d) &&
         (basic & kMovbe) != 0 && (basic & kF16c) != 0 && (extended & kLzcnt) != 0;
}
#endif

// All that the compiler may emit for a level, not only what the loops were written for.
Isa Detect() {
#ifdef LARGEOUT_X86_LEVELS
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && HasLzcntMovbeF16c();
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? Isa::kV4 : (v3 ? Isa::kV3 : Isa::kGeneric);
#else
  return Isa::kGeneric;
#endif
}

std::atomic<int>& Chosen() {
  static std::atomic<int> chosen(static_cast<int>(BestIsa()));
  return chosen;
}

}  // namespace

Isa BestIsa() {
  static const Isa best = Detect();
  return best;
}

Isa CurrentIsa() { return static_cast<Isa>(Chosen().load(std::memory_order_relaxed)); }

const char* IsaName(Isa isa) {
  return isa == Isa::kV4 ? "x86-64-v4" : (isa == Isa::kV3 ? "x86-64-v3" : "generic");
}

Isa SetIsa(Isa isa) {
  const Isa used = static_cast<int>(isa) < static_cast<int>(BestIsa()) ? isa : BestIsa();
  Chosen().store(static_cast<int>(used), std::memory_order_relaxed);
  return used;
}

}  // namespace largeout
