// The formulas of row_update.h in float64, one element at a time, and random updates to try them on.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_REFERENCE_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/bfloat16.h"
#include "common/test/check.h"
#include "common/test/levels.h"
#include "row_update/row_update.h"

namespace largeout {

// What an update changes.
template <typename T>
struct UpdateState {
  std::vector<T> table;
  std::vector<float> slots[kMaxSlots];
  bool operator==(const UpdateState& o) const {
    return SameBits(table, o.table) && SameBits(slots[0], o.slots[0]) && SameBits(slots[1], o.slots[1]);
  }
};

inline std::vector<float> HyperOf(UpdateRule rule, float decay) {
  switch (rule) {
    case UpdateRule::kSgd:
      return {0.1f, decay};
    case UpdateRule::kMomentum:
    case UpdateRule::kNesterov:
      return {0.1f, decay, 0.9f};
    case UpdateRule::kAdagrad:
    case UpdateRule::kRowWiseAdagrad:
      return {0.1f, decay, 1e-3f};
    case UpdateRule::kLazyAdam:
      return {0.1f, decay, 0.1f, 0.01f, 1e-3f};
    case UpdateRule::kFtrl:
      return {0.1f, decay, -0.5f, 0.05f, 0.1f, 0.01f};
  }
  return {};
}

// One element by the formulas of row_update.h; row_sum is what row_wise_adagrad has in the place of s0.
inline void Element(UpdateRule rule, const std::vector<float>& h, double g, double* w, double* s0, double* s1,
                    double row_sum) {
  *w -= *w * h[kDecay];
  switch (rule) {
    case UpdateRule::kSgd:
      *w -= g * h[kRate];
      break;
    case UpdateRule::kMomentum:
      *s0 = *s0 * h[kMomentumFactor] - g * h[kRate];
      *w += *s0;
      break;
    case UpdateRule::kNesterov:
      *s0 = *s0 * h[kMomentumFactor] - g * h[kRate];
      *w += *s0 * h[kMomentumFactor] - g * h[kRate];
      break;
    case UpdateRule::kAdagrad:
      *s0 += g * g;
      *w -= h[kRate] * g / std::sqrt(*s0 + h[kAdagradEpsilon]);
      break;
    case UpdateRule::kRowWiseAdagrad:
      *w -= h[kRate] * g / std::sqrt(row_sum + h[kAdagradEpsilon]);
      break;
    case UpdateRule::kLazyAdam:
      *s0 += (g - *s0) * h[kOneMinusBeta1];
      *s1 += (g * g - *s1) * h[kOneMinusBeta2];
      *w -= *s0 * h[kRate] / (std::sqrt(*s1) + h[kAdamEpsilon]);
      break;
    case UpdateRule::kFtrl: {
      const double b = *s0 + g * g, power = std::pow(b, -h[kPower]);
      *s1 += g + 2.0 * h[kShrinkage] * *w - (power - std::pow(*s0, -h[kPower])) / h[kRate] * *w;
      const double clipped = std::max<double>(-h[kL1], std::min<double>(h[kL1], *s1));
      *w = (clipped - *s1) / (power / h[kRate] + 2.0 * h[kL2]);
      *s0 = b;
      break;
    }
  }
}

template <typename T>
std::vector<T> Make(int64_t n, Random* random, float offset) {
  std::vector<T> x(n);
  for (T& v : x) FromFloat(random->Normalish() + offset, &v);
  return x;
}

// What rounds rows of T stochastically, as the part of a larger table; nothing where T is float.
template <typename T>
std::vector<int64_t> RoundingOf(uint64_t seed) {
  if (sizeof(T) != 2) return {};
  return {static_cast<int64_t>(seed), 7, 5, 3, seed % 2 == 0 ? 0 : 1009, 11};
}

// A random table, and what to do with it.
template <typename T, typename G, typename Id>
struct UpdateProblem {
  UpdateProblem(UpdateRule rule, int64_t rows, int64_t dim, int64_t n, bool increasing, float decay)
      : rule(rule), rows(rows), dim(dim), hyper(HyperOf(rule, decay)) {
    Random random(static_cast<uint64_t>(rows * 1000 + dim * 10 + n));
    start.table = Make<T>(rows * dim, &random, 0.f);
    for (auto& slot : start.slots) slot = Make<float>(info().slot_per_row ? rows : rows * dim, &random, 3.f);
    ids.resize(n);
    for (Id& id : ids) id = static_cast<Id>(random.Below(rows));
    if (increasing) {
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    }
    values = Make<G>(static_cast<int64_t>(ids.size()) * dim, &random, 0.f);
  }

  const UpdateRuleInfo& info() const { return kUpdateRuleInfo[static_cast<int>(rule)]; }

  UpdateRule rule;
  int64_t rows, dim;
  std::vector<float> hyper;
  std::vector<int64_t> rounding = {};  // RoundingNumbers; empty: to nearest
  UpdateState<T> start;
  std::vector<Id> ids;
  std::vector<G> values;
};

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_REFERENCE_H_
