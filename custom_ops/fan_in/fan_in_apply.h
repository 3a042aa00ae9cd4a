// Applies the gradients of a chunk of classes: writes them, or updates in place. Internal to the family.
#ifndef LARGEOUT_FAN_IN_FAN_IN_APPLY_H_
#define LARGEOUT_FAN_IN_FAN_IN_APPLY_H_

#include <algorithm>

#include "fan_in/fan_in_kernels.h"
#include "row_update/row_update.h"

namespace largeout {

template <typename T>
class ApplyGradients {
 public:
  ApplyGradients(const FanInStep<T>& step, int64_t fan_in) : step_(step), fan_in_(fan_in) {
    if (step.rule == FanInRule::kNone) return;
    for (int i = 0; i < kFanInRuleInfo[static_cast<int>(step.rule)].hyper; ++i)
      hyper_[i] = bias_hyper_[i] = step.hyper[i];
    bias_hyper_[kDecay] = 0.f;
    all_weights_ =
        step.rule == FanInRule::kAdam || (step.rule != FanInRule::kLazyAdam && hyper_[kDecay] != 0.f);
    weights_ = SelectUpdate(step.rule, static_cast<T*>(nullptr));
    bias_ = SelectUpdate(step.rule, static_cast<float*>(nullptr));
  }

  bool wanted() const { return !step_.HasNone(); }

  // Rows [row, row + n): d_weights [n, fan_in] and d_bias [n] hold the gradients of the rows with found[i] !=
  // 0, others have none (what the arrays hold for them is overwritten). None is looked at where none is
  // wanted.
  void Chunk(int64_t row, int64_t n, const uint8_t* found, float* d_weights, float* d_bias) const {
    if (!wanted()) return;
    const bool written = step_.rule == FanInRule::kNone;
    if (written || all_weights_ || step_.rule == FanInRule::kAdam) {
      for (int64_t i = 0; i < n; ++i) {
        if (found[i]) continue;
        std::fill_n(d_weights + i * fan_in_, fan_in_, 0.f);
        d_bias[i] = 0.f;
      }
    }
    if (written) return Write(row, n, d_weights, d_bias);
    Runs(n, all_weights_ ? nullptr : found, [&](int64_t first, int64_t count) {
      const int64_t at = (row + first) * fan_in_;
      float* slots[kFanInMaxSlots] = {};
      for (int i = 0; i < kFanInMaxSlots; ++i)
        slots[i] = step_.slots[i] == nullptr ? nullptr : step_.slots[i] + at;
      weights_(step_.weights + at, slots, d_weights + first * fan_in_, count * fan_in_, hyper_, step_.key,
               static_cast<uint64_t>(step_.first_class) * fan_in_ + at);
    });
    if (step_.bias == nullptr) return;
    Runs(n, step_.rule == FanInRule::kAdam ? nullptr : found, [&](int64_t first, int64_t count) {
      float* slots[kFanInMaxSlots] = {};
      for (int i = 0; i < kFanInMaxSlots; ++i) {
        slots[i] = step_.bias_slots[i] == nullptr ? nullptr : step_.bias_slots[i] + row + first;
      }
      bias_(step_.bias + row + first, slots, d_bias + first, count, bias_hyper_, 0, 0);
    });
  }

 private:
  // use(first, count) for every run of found rows; found = null: all.
  template <typename Use>
  static void Runs(int64_t n, const uint8_t* found, Use use) {
    for (int64_t i = 0; i < n;) {
      int64_t end = i;
      while (end < n && (found == nullptr || found[end])) ++end;
      if (end > i) use(i, end - i);
      i = end + 1;
    }
  }

  void Write(int64_t row, int64_t n, const float* d_weights, const float* d_bias) const {
    T* out = step_.weights + row * fan_in_;
    for (int64_t i = 0; i < n * fan_in_; ++i) FromFloat(d_weights[i], out + i);
    if (step_.bias != nullptr) std::copy_n(d_bias, n, step_.bias + row);
  }

  const FanInStep<T> step_;
  const int64_t fan_in_;
  bool all_weights_ = false;
  float hyper_[8] = {}, bias_hyper_[8] = {};
  FanInUpdate<T> weights_ = nullptr;
  FanInUpdate<float> bias_ = nullptr;
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_APPLY_H_
