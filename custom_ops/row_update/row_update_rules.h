// For the _simd.cc files of row_update and fan_in: one struct a rule. Step takes g, w and the slots of kLanes elements, updates
// the slots and returns the new w. Formulas are those of row_update.h, operation by operation, so that NumPy
// gives the same bits.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_RULES_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_RULES_H_

#include "common/simd.h"
#include "row_update/row_update.h"

#define LARGEOUT_STEP inline __attribute__((always_inline)) VF

namespace largeout {
namespace LARGEOUT_ISA {

struct Rule {
  explicit inline __attribute__((always_inline)) Rule(const float* hyper)
      : rate(Set(hyper[kRate])), decay(Set(hyper[kDecay])), decays(hyper[kDecay] != 0.f) {}
  LARGEOUT_STEP Decayed(VF w) const { return decays ? w - w * decay : w; }
  VF rate, decay;
  bool decays;
};

struct Sgd : Rule {
  static constexpr int kSlots = 0;
  using Rule::Rule;
  LARGEOUT_STEP Step(VF g, VF w, VF*) const { return Decayed(w) - g * rate; }
};

struct Momentum : Rule {
  static constexpr int kSlots = 1;
  explicit inline __attribute__((always_inline)) Momentum(const float* hyper)
      : Rule(hyper), momentum(Set(hyper[kMomentumFactor])) {}
  LARGEOUT_STEP Step(VF g, VF w, VF* slots) const {
    slots[0] = slots[0] * momentum - g * rate;
    return Decayed(w) + slots[0];
  }
  VF momentum;
};

struct Nesterov : Momentum {
  using Momentum::Momentum;
  LARGEOUT_STEP Step(VF g, VF w, VF* slots) const {
    const VF step = g * rate;
    slots[0] = slots[0] * momentum - step;
    return Decayed(w) + (slots[0] * momentum - step);
  }
};

struct Adagrad : Rule {
  static constexpr int kSlots = 1;
  explicit inline __attribute__((always_inline)) Adagrad(const float* hyper)
      : Rule(hyper), epsilon(Set(hyper[kAdagradEpsilon])) {}
  LARGEOUT_STEP Step(VF g, VF w, VF* slots) const {
    slots[0] = slots[0] + g * g;
    return Decayed(w) - rate * g / Sqrt(slots[0] + epsilon);
  }
  VF epsilon;
};

// The accumulator of a row is one number: UpdateRow adds the mean of squares, then Step divides by its root.
struct RowWiseAdagrad : Rule {
  static constexpr int kSlots = 0;
  explicit inline __attribute__((always_inline)) RowWiseAdagrad(const float* hyper)
      : Rule(hyper), epsilon(hyper[kAdagradEpsilon]), root(Zero()) {}
  LARGEOUT_STEP Step(VF g, VF w, VF*) const { return Decayed(w) - rate * g / root; }
  float epsilon;
  VF root;
};

struct LazyAdam : Rule {
  static constexpr int kSlots = 2;
  explicit inline __attribute__((always_inline)) LazyAdam(const float* hyper)
      : Rule(hyper),
        first(Set(hyper[kOneMinusBeta1])),
        second(Set(hyper[kOneMinusBeta2])),
        epsilon(Set(hyper[kAdamEpsilon])) {}
  LARGEOUT_STEP Step(VF g, VF w, VF* slots) const {
    slots[0] = slots[0] + (g - slots[0]) * first;
    slots[1] = slots[1] + (g * g - slots[1]) * second;
    return Decayed(w) - slots[0] * rate / (Sqrt(slots[1]) + epsilon);
  }
  VF first, second, epsilon;
};

struct Ftrl : Rule {
  static constexpr int kSlots = 2;
  explicit inline __attribute__((always_inline)) Ftrl(const float* hyper)
      : Rule(hyper),
        exponent(-hyper[kPower]),
        l1(Set(hyper[kL1])),
        two_l2(Set(2.f * hyper[kL2])),
        two_shrinkage(Set(2.f * hyper[kShrinkage])) {}
  LARGEOUT_STEP Power(VF x) const {
    if (exponent == 0.5f) return Sqrt(x);
    VF r;
    for (int i = 0; i < kLanes; ++i) r[i] = __builtin_powf(x[i], exponent);
    return r;
  }
  LARGEOUT_STEP Step(VF g, VF w, VF* slots) const {
    w = Decayed(w);
    const VF sum = slots[0] + g * g;
    const VF power = Power(sum);
    slots[1] = slots[1] + (g + two_shrinkage * w - (power - Power(slots[0])) / rate * w);
    const VF clipped = Max(Min(slots[1], l1), -l1);
    slots[0] = sum;
    return (clipped - slots[1]) / (power / rate + two_l2);
  }
  float exponent;
  VF l1, two_l2, two_shrinkage;
};

}  // namespace LARGEOUT_ISA
}  // namespace largeout

#undef LARGEOUT_STEP

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_RULES_H_
