// Compares gradients with those that were expected.
#include <cmath>

#include "full_softmax/full_softmax.h"

namespace largeout {

bool IsExpected(const SoftmaxExpected& expected, const float* lse, const SoftmaxUpstream& upstream,
                int64_t tokens, float* factor) {
  // The factor is that of the largest number; the others may be off by rounding.
  constexpr float kRounding = 1e-6f;
  float largest = 0.f, got_largest = 0.f;
  const auto each = [&](const auto& body) {
    for (int64_t t = 0; t < tokens; ++t) {
      if (!body(expected.OfLse(t, lse[t]), upstream.lse[t]) || !body(expected.OfCe(t), upstream.ce[t]) ||
          !body(expected.OfSum(t), upstream.sum[t])) {
        return false;
      }
    }
    return true;
  };
  each([&](float want, float got) {
    if (std::fabs(want) > largest) largest = std::fabs(want), got_largest = want < 0 ? -got : got;
    return true;
  });
  *factor = largest == 0.f ? 0.f : got_largest / largest;
  return std::isfinite(*factor) && each([&](float want, float got) {
           return std::fabs(got - *factor * want) <= kRounding * std::fabs(*factor * want);
         });
}

}  // namespace largeout
