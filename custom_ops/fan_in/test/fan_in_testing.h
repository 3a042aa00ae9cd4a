// Random layers and batches, and what the ops should make of them, in float64: for tests and benches.
#ifndef LARGEOUT_FAN_IN_FAN_IN_TESTING_H_
#define LARGEOUT_FAN_IN_FAN_IN_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "common/test/check.h"
#include "common/test/levels.h"
#include "common/test/test_call.h"
#include "fan_in/fan_in.h"
#include "fan_in/fan_in_random.h"

namespace largeout {

inline constexpr FanInLoss kFanInAllLosses[] = {FanInLoss::kSquaredHinge, FanInLoss::kBinaryCrossentropy,
                                                FanInLoss::kSoftmax};

// The nearest bfloat16.
inline std::vector<bfloat16> Rounded(const std::vector<float>& values) {
  std::vector<bfloat16> rounded(values.size());
  for (size_t i = 0; i < values.size(); ++i) FromFloat(values[i], &rounded[i]);
  return rounded;
}

// A layer with its slots, a batch, labels (some twice, some absent) and gradients of the losses.
template <typename T, typename Id>
struct FanInProblem {
  FanInProblem(int64_t classes, int64_t fan_in, int64_t inputs, int64_t size, uint64_t seed,
               bool use_bias = true, bool use_weights = true, float bias_mean = 0.f)
      : classes(classes), fan_in(fan_in), inputs(inputs), batch(size, inputs) {
    Random random(seed);
    weights.resize(classes * fan_in), indices.resize(classes * fan_in), x.resize(size * inputs);
    for (T& w : weights) FromFloat(random.Normalish(), &w);
    std::vector<Id> order(inputs);
    for (int64_t i = 0; i < inputs; ++i) order[i] = static_cast<Id>(i);
    for (int64_t c = 0; c < classes; ++c) {
      for (int64_t k = 0; k < fan_in; ++k) {
        std::swap(order[k], order[k + random.Below(inputs - k)]);
        indices[c * fan_in + k] = order[k];
      }
    }
    if (use_bias) bias.resize(classes);
    for (float& b : bias) b = random.Normalish() + bias_mean;
    for (float& v : x) v = random.Normalish();
    for (int i = 0; i < kFanInMaxSlots; ++i) {
      slots[i].resize(classes * fan_in), bias_slots[i].resize(use_bias ? classes : 0);
      for (float& s : slots[i]) s = 0.1f + static_cast<float>(random.Unit());
      for (float& s : bias_slots[i]) s = 0.1f + static_cast<float>(random.Unit());
    }
    row_splits.push_back(0);
    for (int64_t b = 0; b < size; ++b) {
      for (int64_t n = random.Below(5); n > 0 && classes > 0; --n) {
        labels.push_back(random.Below(4) == 0 ? -1 : first_class + random.Below(classes));
        if (random.Below(4) == 0) labels.push_back(labels.back());
      }
      row_splits.push_back(static_cast<int64_t>(labels.size()));
      grad_loss.push_back(b % 7 == 3 ? 0.f : random.Normalish());
    }
    if (use_weights) label_weights.resize(labels.size());
    for (float& w : label_weights) w = 0.5f + static_cast<float>(random.Unit());
  }

  FanInLayer<T, Id> layer() const {
    return {weights.data(), indices.data(), bias.empty() ? nullptr : bias.data(), classes, fan_in, inputs};
  }
  FanInLabels<int64_t> label_lists() const {
    return {labels.data(),
            row_splits.data(),
            label_weights.empty() ? nullptr : label_weights.data(),
            static_cast<int64_t>(labels.size()),
            first_class,
            first_class + classes};
  }
  // Makes the inputs bfloat16.
  void RoundInputs() {
    narrow = true;
    const std::vector<bfloat16> rounded = Rounded(x);
    for (size_t i = 0; i < x.size(); ++i) x[i] = ToFloat(rounded[i]);
  }
  float Input(int64_t b, int64_t c, int64_t k) const { return x[b * inputs + indices[c * fan_in + k]]; }

  std::vector<double> Logits() const {
    std::vector<double> z(batch.size * classes);
    for (int64_t b = 0; b < batch.size; ++b) {
      for (int64_t c = 0; c < classes; ++c) {
        double sum = bias.empty() ? 0.0 : bias[c];
        for (int64_t k = 0; k < fan_in; ++k)
          sum += static_cast<double>(ToFloat(weights[c * fan_in + k])) * Input(b, c, k);
        z[b * classes + c] = sum;
      }
    }
    return z;
  }

  // The losses, and (times grad_loss) their gradients to the logits in *gradients.
  std::vector<double> Losses(FanInLoss loss, const std::vector<double>& z,
                             std::vector<double>* gradients) const {
    std::vector<double> losses(batch.size);
    gradients->assign(z.size(), 0.0);
    for (int64_t b = 0; b < batch.size; ++b) {
      const double* row = z.data() + b * classes;
      std::vector<double> weight(classes, -1.0);  // below 0: no label
      double mass = 0, high = -INFINITY, total = 0;
      for (int64_t i = row_splits[b]; i < row_splits[b + 1]; ++i) {
        double* w = labels[i] < 0 ? nullptr : &weight[labels[i] - first_class];
        if (w != nullptr && *w < 0) mass += (*w = label_weights.empty() ? 1.0 : label_weights[i]);
      }
      for (int64_t c = 0; c < classes; ++c) high = std::max(high, row[c]);
      for (int64_t c = 0; c < classes; ++c) total += std::exp(row[c] - high);
      const double lse = high + std::log(total);
      for (int64_t c = 0; c < classes; ++c) {
        const bool label = weight[c] >= 0;
        const double s = label ? 1.0 : -1.0, w = label ? weight[c] : 1.0;
        double term = 0, gradient = 0;
        if (loss == FanInLoss::kSquaredHinge) {
          const double slack = std::max(0.0, 1.0 - s * row[c]);
          term = w * slack * slack, gradient = -2.0 * w * s * slack;
        } else if (loss == FanInLoss::kBinaryCrossentropy) {
          term = w * std::log1p(std::exp(-s * row[c])), gradient = -w * s / (1.0 + std::exp(s * row[c]));
        } else {
          term = label ? w * (lse - row[c]) : 0.0,
          gradient = mass * std::exp(row[c] - lse) - (label ? w : 0.0);
        }
        losses[b] += term;
        (*gradients)[b * classes + c] = gradient * grad_loss[b];
      }
    }
    return losses;
  }

  int64_t classes, fan_in, inputs;
  FanInBatch batch;
  int64_t first_class = 1000;
  std::vector<T> weights;
  std::vector<Id> indices;
  bool narrow = false;  // whether devices are given the inputs as bfloat16
  std::vector<float> bias, x, label_weights, grad_loss;
  std::vector<float> slots[kFanInMaxSlots], bias_slots[kFanInMaxSlots];
  std::vector<int64_t> labels, row_splits;
};

template <typename T>
struct FanInOutput {
  std::vector<float> logits, loss, lse, mass, d_x, bias, slots[kFanInMaxSlots], bias_slots[kFanInMaxSlots];
  std::vector<T> weights;
  std::vector<uint8_t> active;

  bool operator==(const FanInOutput& o) const {
    bool same = SameBits(logits, o.logits) && SameBits(loss, o.loss) && SameBits(lse, o.lse) &&
                SameBits(mass, o.mass) && SameBits(d_x, o.d_x) && SameBits(bias, o.bias) &&
                SameBits(weights, o.weights) && SameBits(active, o.active);
    for (int i = 0; i < kFanInMaxSlots; ++i)
      same = same && SameBits(slots[i], o.slots[i]) && SameBits(bias_slots[i], o.bias_slots[i]);
    return same;
  }
};

struct FanInOptions {
  FanInRule rule = FanInRule::kNone;
  bool given = false;  // gradients of the logits are given
  bool inputs = true;  // compute the gradient of the inputs
  float decay = 0.f;
  bool weights = true;  // compute those of weights and bias, where they are written
};

inline std::vector<float> HyperOf(FanInRule rule, float decay) {
  if (rule == FanInRule::kSgd) return {0.1f, decay};
  if (rule == FanInRule::kAdagrad) return {0.1f, decay, 1e-3f};
  return {0.1f, decay, 0.1f, 0.01f, 1e-3f};
}

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_TESTING_H_
