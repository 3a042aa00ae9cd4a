#include "common/isa.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

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

bool HasBfloat16() {
  constexpr unsigned kAvx512Bf16 = 1u << 5;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kAvx512Bf16) != 0;
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
  if (v4) return HasBfloat16() ? Isa::kV4Bfloat16 : Isa::kV4;
  return v3 ? Isa::kV3 : Isa::kGeneric;
#else
  return Isa::kGeneric;
#endif
}

// BestIsa, or what LARGEOUT_ISA lowers it to.
Isa Default() {
  const char* name = std::getenv("LARGEOUT_ISA");
  if (name != nullptr) {
    const char* const names[] = {"generic", "v3", "v4"};
    for (int isa = 0; isa < 3; ++isa) {
      if (std::strcmp(name, names[isa]) == 0 && isa < static_cast<int>(BestIsa()))
        return static_cast<Isa>(isa);
    }
  }
  return BestIsa();
}

std::atomic<int>& Chosen() {
  static std::atomic<int> chosen(static_cast<int>(Default()));
  return chosen;
}

}  // namespace

Isa BestIsa() {
  static const Isa best = Detect();
  return best;
}

Isa CurrentIsa() { return static_cast<Isa>(Chosen().load(std::memory_order_relaxed)); }

const char* IsaName(Isa isa) {
  const char* const names[] = {"generic", "x86-64-v3", "x86-64-v4", "x86-64-v4 with AVX512-BF16"};
  return names[static_cast<int>(isa)];
}

Isa SetIsa(Isa isa) {
  const Isa used = static_cast<int>(isa) < static_cast<int>(BestIsa()) ? isa : BestIsa();
  Chosen().store(static_cast<int>(used), std::memory_order_relaxed);
  return used;
}

}  // namespace largeout
