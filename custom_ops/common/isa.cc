#include "common/isa.h"

#include <atomic>

namespace largeout {
namespace {

Isa Detect() {
#ifdef LARGEOUT_X86_LEVELS
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
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
