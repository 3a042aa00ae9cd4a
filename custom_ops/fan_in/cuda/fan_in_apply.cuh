// Private to fan_in_backward.cu: what becomes of the gradients of weights and bias.
//
// A warp makes an OnDevice of a class, by whether it has a gradient; then a lane hands over that of a weight,
// or of the bias.
#ifndef LARGEOUT_FAN_IN_FAN_IN_APPLY_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_APPLY_CUH_

#include "fan_in/cuda/fan_in_row.cuh"
#include "fan_in/fan_in_random.h"
#include "row_update/cuda/row_update_rules.cuh"

namespace largeout {
namespace fan_in_gpu {

// Nothing: frozen weights.
struct Leave {
  struct OnDevice {
    __device__ OnDevice(const Leave&, bool) {}
    __device__ bool Skips() const { return true; }
    __device__ bool HasBias() const { return false; }
    __device__ void Weight(int64_t, float) const {}
    __device__ void Bias(int64_t, float) const {}
  };
};

// Gradients as they are. T: what they are written as.
template <typename T>
struct Write {
  T* weights;
  float* bias;

  struct OnDevice {
    __device__ OnDevice(const Write& to, bool) : to(to) {}
    __device__ bool Skips() const { return false; }
    __device__ bool HasBias() const { return to.bias != nullptr; }
    __device__ void Weight(int64_t at, float d) const { GpuFromFloat(d, &to.weights[at]); }
    __device__ void Bias(int64_t row, float d) const { to.bias[row] = d; }
    Write to;
  };
};

__device__ __forceinline__ void Store(float value, uint64_t, uint64_t, float* to) { *to = value; }
// Rounded up with the probability of what is cut off.
__device__ __forceinline__ void Store(float value, uint64_t key, uint64_t element, bfloat16* to) {
  to->bits = RoundStochastically(__float_as_uint(value), FanInBits(key, element));
}

// An optimizer's step.
template <typename RuleT, typename T>
struct Update {
  FanInStep<T> step;
  uint64_t first;    // the number of the first weight
  bool every, lazy;  // rows without gradient move too, or are left alone even where weights decay

  struct OnDevice {
    __device__ OnDevice(const Update& to, bool found)
        : to(to), rule(to.step.hyper), bias_rule(to.step.hyper), found(found) {
      bias_rule.decay = 0.f;
    }
    __device__ bool Skips() const { return !found && !to.every && (to.lazy || rule.decay == 0.f); }
    __device__ bool HasBias() const { return to.step.bias != nullptr && (found || to.every); }
    __device__ void Weight(int64_t at, float d) const {
      float slots[kFanInMaxSlots];
      for (int i = 0; i < RuleT::kSlots; ++i) slots[i] = to.step.slots[i][at];
      const float next = rule.Step(d, GpuToFloat(to.step.weights[at]), slots);
      Store(next, to.step.key, to.first + static_cast<uint64_t>(at), &to.step.weights[at]);
      for (int i = 0; i < RuleT::kSlots; ++i) to.step.slots[i][at] = slots[i];
    }
    __device__ void Bias(int64_t row, float d) const {
      float slots[kFanInMaxSlots];
      for (int i = 0; i < RuleT::kSlots; ++i) slots[i] = to.step.bias_slots[i][row];
      to.step.bias[row] = bias_rule.Step(d, to.step.bias[row], slots);
      for (int i = 0; i < RuleT::kSlots; ++i) to.step.bias_slots[i][row] = slots[i];
    }
    const Update& to;
    RuleT rule, bias_rule;
    bool found;
  };
};

// Calls with(apply) with what `step` asks for. fan_in: connections of a class.
template <typename T, typename With>
int WithApply(const FanInStep<T>& step, int64_t fan_in, const With& with) {
  const uint64_t first = static_cast<uint64_t>(step.first_class) * fan_in;
  if (step.HasNone()) return with(Leave());
  switch (step.rule) {
    case FanInRule::kNone:
      return with(Write<T>{step.weights, step.bias});
    case FanInRule::kSgd:
      return with(Update<gpu::Sgd, T>{step, first, false, false});
    case FanInRule::kAdagrad:
      return with(Update<gpu::Adagrad, T>{step, first, false, false});
    case FanInRule::kAdam:
      return with(Update<gpu::LazyAdam, T>{step, first, true, false});
    case FanInRule::kLazyAdam:
      return with(Update<gpu::LazyAdam, T>{step, first, false, true});
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_APPLY_CUH_
