// For the .cu files of row_update and fan_in: the rules of row_update_rules.h for one element. `hyper` is device memory.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_RULES_CUH_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_RULES_CUH_

#include "row_update/row_update.h"

namespace largeout {
namespace gpu {

struct Rule {
  __device__ explicit Rule(const float* hyper) : rate(hyper[kRate]), decay(hyper[kDecay]) {}
  __device__ float Decayed(float w) const { return decay != 0.f ? w - w * decay : w; }
  float rate, decay;
};

struct Sgd : Rule {
  static constexpr int kSlots = 0;
  __device__ explicit Sgd(const float* hyper) : Rule(hyper) {}
  __device__ float Step(float g, float w, float*) const { return Decayed(w) - g * rate; }
};

struct Momentum : Rule {
  static constexpr int kSlots = 1;
  __device__ explicit Momentum(const float* hyper) : Rule(hyper), momentum(hyper[kMomentumFactor]) {}
  __device__ float Step(float g, float w, float* s) const {
    s[0] = s[0] * momentum - g * rate;
    return Decayed(w) + s[0];
  }
  float momentum;
};

struct Nesterov : Momentum {
  __device__ explicit Nesterov(const float* hyper) : Momentum(hyper) {}
  __device__ float Step(float g, float w, float* s) const {
    const float step = g * rate;
    s[0] = s[0] * momentum - step;
    return Decayed(w) + (s[0] * momentum - step);
  }
};

struct Adagrad : Rule {
  static constexpr int kSlots = 1;
  __device__ explicit Adagrad(const float* hyper) : Rule(hyper), epsilon(hyper[kAdagradEpsilon]) {}
  __device__ float Step(float g, float w, float* s) const {
    s[0] += g * g;
    return Decayed(w) - rate * g / sqrtf(s[0] + epsilon);
  }
  float epsilon;
};

// `root` is set for the row before its elements are updated.
struct RowWiseAdagrad : Rule {
  static constexpr int kSlots = 0;
  __device__ explicit RowWiseAdagrad(const float* hyper)
      : Rule(hyper), epsilon(hyper[kAdagradEpsilon]), root(1.f) {}
  __device__ float Step(float g, float w, float*) const { return Decayed(w) - rate * g / root; }
  float epsilon, root;
};

struct LazyAdam : Rule {
  static constexpr int kSlots = 2;
  __device__ explicit LazyAdam(const float* hyper)
      : Rule(hyper),
        first(hyper[kOneMinusBeta1]),
        second(hyper[kOneMinusBeta2]),
        epsilon(hyper[kAdamEpsilon]) {}
  __device__ float Step(float g, float w, float* s) const {
    s[0] += (g - s[0]) * first;
    s[1] += (g * g - s[1]) * second;
    return Decayed(w) - s[0] * rate / (sqrtf(s[1]) + epsilon);
  }
  float first, second, epsilon;
};

struct Ftrl : Rule {
  static constexpr int kSlots = 2;
  __device__ explicit Ftrl(const float* hyper)
      : Rule(hyper),
        exponent(-hyper[kPower]),
        l1(hyper[kL1]),
        two_l2(2.f * hyper[kL2]),
        two_shrinkage(2.f * hyper[kShrinkage]) {}
  __device__ float Power(float x) const { return exponent == 0.5f ? sqrtf(x) : powf(x, exponent); }
  __device__ float Step(float g, float w, float* s) const {
    w = Decayed(w);
    const float sum = s[0] + g * g, power = Power(sum);
    s[1] += g + two_shrinkage * w - (power - Power(s[0])) / rate * w;
    const float clipped = fmaxf(fminf(s[1], l1), -l1);
    s[0] = sum;
    return (clipped - s[1]) / (power / rate + two_l2);
  }
  float exponent, l1, two_l2, two_shrinkage;
};

}  // namespace gpu
}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_RULES_CUH_
