// Runs the body of a case at every instruction-set level that the machine has, up to kHighest; on a GPU,
// once.
#ifndef LARGEOUT_COMMON_LEVELS_H_
#define LARGEOUT_COMMON_LEVELS_H_

#include <cstring>
#include <type_traits>
#include <vector>

#include "common/isa.h"
#include "common/scratch.h"

namespace largeout {

template <typename Device>
constexpr bool kOnCpu = std::is_same<typename Device::Call, CpuCall>::value;

template <typename Device, Isa kHighest = Isa::kV4, typename Body>
void ForEachLevel(const Body& body) {
  if constexpr (kOnCpu<Device>) {
    for (const Isa isa : {Isa::kGeneric, Isa::kV3, Isa::kV4, Isa::kV4Bfloat16}) {
      if (isa <= kHighest && SetIsa(isa) == isa) body();
    }
    SetIsa(BestIsa());
  } else {
    body();
  }
}

// n values that no kernel writes (NaN, or -1), so that what it leaves out shows.
template <typename X>
std::vector<X> Unwritten(int64_t n) {
  std::vector<X> values(n);
  if (n > 0) std::memset(static_cast<void*>(values.data()), 0xff, n * sizeof(X));
  return values;
}

template <typename X>
bool SameBits(const std::vector<X>& a, const std::vector<X>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(X)) == 0);
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_LEVELS_H_
