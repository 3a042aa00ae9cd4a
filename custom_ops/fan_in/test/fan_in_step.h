// A layer in the memory of a device, its forward and backward pass as a training step calls them, and what
// should come out.
#ifndef LARGEOUT_FAN_IN_FAN_IN_STEP_H_
#define LARGEOUT_FAN_IN_FAN_IN_STEP_H_

#include "fan_in/test/fan_in_testing.h"

namespace largeout {

template <typename T, typename Id>
FanInPositives PositivesOf(const FanInProblem<T, Id>& p) {
  FanInPositives positives;
  int64_t position;
  CHECK_TRUE(SortLabels(p.label_lists(), p.batch, p.classes, &positives, &position) == FanInLabelStatus::kOk);
  return positives;
}

template <typename Device, typename T, typename Id>
struct LayerOn {
  explicit LayerOn(const FanInProblem<T, Id>& p)
      : weights(p.weights),
        indices(p.indices),
        bias(p.bias),
        x(p.x),
        narrow_x(Rounded(p.x)),
        narrow(p.narrow),
        grad_loss(p.grad_loss),
        positives(PositivesOf(p)),
        layer(p.layer()) {
    layer.weights = weights.get(), layer.indices = indices.get();
    if (!p.bias.empty()) layer.bias = bias.get();
  }
  int LayOut(Device* device) const {
    return narrow ? device->LayOut(narrow_x.get()) : device->LayOut(x.get());
  }
  // Those of a loss; softmax needs more.
  FanInGradients gradients(FanInLoss loss) const {
    FanInGradients gradients;
    gradients.loss = loss, gradients.positives = &positives, gradients.grad_loss = grad_loss.get();
    return gradients;
  }

  const ArrayOf<Device, T> weights;
  const ArrayOf<Device, Id> indices;
  const ArrayOf<Device, float> bias, x;
  const ArrayOf<Device, bfloat16> narrow_x;
  const bool narrow;
  const ArrayOf<Device, float> grad_loss;
  const FanInPositives positives;
  FanInLayer<T, Id> layer;
};

// The logits on a device; *bad: as the kernel says.
template <typename Device, typename T, typename Id>
std::vector<float> LogitsOf(const FanInProblem<T, Id>& p, int64_t* bad, int threads = 1) {
  const LayerOn<Device, T, Id> on(p);
  const ArrayOf<Device, float> logits(Unwritten<float>(p.batch.size * p.classes));
  TestCall<typename Device::Call> call(threads);
  Device device(call.get(), p.batch);
  CHECK_TRUE(on.LayOut(&device) == 0 && device.Logits(on.layer, logits.get(), bad) == 0);
  return logits.Host();
}

template <typename Device, typename T, typename Id>
FanInOutput<T> ComputeFanIn(const FanInProblem<T, Id>& p, FanInLoss loss, const FanInOptions& options,
                            int threads = 1) {
  const FanInBatch& batch = p.batch;
  const LayerOn<Device, T, Id> on(p);
  TestCall<typename Device::Call> call(threads);
  Device device(call.get(), batch);
  FanInOutput<T> out;
  int64_t bad;
  CHECK_TRUE(on.LayOut(&device) == 0);
  const ArrayOf<Device, float> logits(Unwritten<float>(batch.size * p.classes));
  CHECK_TRUE(device.Logits(on.layer, logits.get(), &bad) == 0 && bad == -1);
  const bool softmax = loss == FanInLoss::kSoftmax, hinge = loss == FanInLoss::kSquaredHinge;
  const ArrayOf<Device, float> losses(Unwritten<float>(batch.size)),
      lse(Unwritten<float>(softmax ? batch.size : 0)), mass(Unwritten<float>(softmax ? batch.size : 0));
  const ArrayOf<Device, uint8_t> active(Unwritten<uint8_t>(hinge ? FanInActiveBytes(batch, p.classes) : 0));
  CHECK_TRUE(device.LossForward(on.layer, loss, on.positives,
                                {losses.get(), lse.get(), mass.get(), active.get()}, &bad) == 0 &&
             bad == -1);
  out.logits = logits.Host(), out.loss = losses.Host();
  out.lse = lse.Host(), out.mass = mass.Host(), out.active = active.Host();

  std::vector<double> exact;
  p.Losses(loss, p.Logits(), &exact);
  const ArrayOf<Device, float> given(std::vector<float>(exact.begin(), exact.end()));
  FanInGradients gradients;
  if (options.given) {
    gradients.logits = given.get();
  } else {
    gradients = on.gradients(loss);
    gradients.lse = lse.get(), gradients.mass = mass.get();
    gradients.active = hinge ? active.get() : nullptr;
  }
  const ArrayOf<Device, float> hyper(HyperOf(options.rule, options.decay)), slot0(p.slots[0]),
      slot1(p.slots[1]), bias_slot0(p.bias_slots[0]), bias_slot1(p.bias_slots[1]);
  const ArrayOf<Device, T> d_weights(p.weights);
  const ArrayOf<Device, float> d_bias(p.bias);
  const bool updates = options.rule != FanInRule::kNone;
  FanInStep<T> step;
  step.rule = options.rule, step.hyper = hyper.get(), step.key = RandomKey(3, 4);
  step.first_class = p.first_class;
  step.weights = updates ? on.weights.get() : d_weights.get();
  step.bias = p.bias.empty() ? nullptr : updates ? on.bias.get() : d_bias.get();
  if (!options.weights) step.weights = nullptr, step.bias = nullptr;
  step.slots[0] = slot0.get(), step.slots[1] = slot1.get();
  step.bias_slots[0] = bias_slot0.get(), step.bias_slots[1] = bias_slot1.get();
  CHECK_TRUE(device.Backward(on.layer, gradients, step, options.inputs, &bad) == 0 && bad == -1);
  out.weights = (updates ? on.weights : d_weights).Host(), out.bias = (updates ? on.bias : d_bias).Host();
  out.slots[0] = slot0.Host(), out.slots[1] = slot1.Host();
  out.bias_slots[0] = bias_slot0.Host(), out.bias_slots[1] = bias_slot1.Host();
  if (options.inputs) {
    const ArrayOf<Device, float> d_x(Unwritten<float>(batch.size * p.inputs));
    CHECK_TRUE(device.LayBack(d_x.get()) == 0);
    out.d_x = d_x.Host();
    if (on.narrow) {
      const ArrayOf<Device, bfloat16> narrow_d_x(Unwritten<bfloat16>(batch.size * p.inputs));
      CHECK_TRUE(device.LayBack(narrow_d_x.get()) == 0);
      CHECK_TRUE(SameBits(narrow_d_x.Host(), Rounded(out.d_x)));
    }
  }
  return out;
}

// One weight by the formulas of row_update.h, in float64.
inline double Updated(FanInRule rule, const std::vector<float>& h, bool decays, double g, double w,
                      double* s0, double* s1) {
  if (decays) w -= w * h[1];
  if (rule == FanInRule::kSgd) return w - g * h[0];
  if (rule == FanInRule::kAdagrad) {
    *s0 += g * g;
    return w - h[0] * g / std::sqrt(*s0 + h[2]);
  }
  *s0 += (g - *s0) * h[2];
  *s1 += (g * g - *s1) * h[3];
  return w - *s0 * h[0] / (std::sqrt(*s1) + h[4]);
}

template <typename T, typename Id>
void CheckOutput(const FanInProblem<T, Id>& p, FanInLoss loss, const FanInOptions& options,
                 const FanInOutput<T>& r) {
  const double tolerance = 1e-5 * std::sqrt(1.0 + p.fan_in);
  const std::vector<double> z = p.Logits();
  std::vector<double> g;
  const std::vector<double> losses = p.Losses(loss, z, &g);
  for (size_t i = 0; i < z.size(); ++i) CHECK_CLOSE(r.logits[i], z[i], tolerance);
  for (int64_t b = 0; b < p.batch.size; ++b) CHECK_CLOSE(r.loss[b], losses[b], tolerance);
  std::vector<double> d_x(p.batch.size * p.inputs);
  const std::vector<float> hyper = HyperOf(options.rule, options.decay);
  for (int64_t c = 0; c < p.classes; ++c) {
    double d_bias = 0;
    bool any = false;
    for (int64_t b = 0; b < p.batch.size; ++b)
      d_bias += g[b * p.classes + c], any |= std::fabs(g[b * p.classes + c]) > 0;
    const bool lazy = options.rule == FanInRule::kLazyAdam && !any;
    for (int64_t k = 0; k < p.fan_in; ++k) {
      const int64_t at = c * p.fan_in + k;
      double d = 0;
      for (int64_t b = 0; b < p.batch.size; ++b) {
        d += g[b * p.classes + c] * p.Input(b, c, k);
        d_x[b * p.inputs + p.indices[at]] += g[b * p.classes + c] * ToFloat(p.weights[at]);
      }
      const double w = ToFloat(p.weights[at]), bits = sizeof(T) == 2 ? 8e-3 : 0;
      if (options.rule == FanInRule::kNone) {
        CHECK_CLOSE(ToFloat(r.weights[at]), d, 10 * tolerance + bits);
      } else {
        double s0 = p.slots[0][at], s1 = p.slots[1][at];
        const double want = lazy ? w : Updated(options.rule, hyper, true, d, w, &s0, &s1);
        CHECK_CLOSE(ToFloat(r.weights[at]), want, 10 * tolerance + bits);
        CHECK_CLOSE(r.slots[0][at], s0, 10 * tolerance);
        CHECK_CLOSE(r.slots[1][at], s1, 10 * tolerance);
      }
    }
    if (p.bias.empty()) continue;
    if (options.rule == FanInRule::kNone) {
      CHECK_CLOSE(r.bias[c], d_bias, 10 * tolerance);
    } else {
      double s0 = p.bias_slots[0][c], s1 = p.bias_slots[1][c];
      CHECK_CLOSE(r.bias[c],
                  lazy ? p.bias[c] : Updated(options.rule, hyper, false, d_bias, p.bias[c], &s0, &s1),
                  10 * tolerance);
      CHECK_CLOSE(r.bias_slots[0][c], s0, 10 * tolerance);
    }
  }
  for (size_t i = 0; i < r.d_x.size(); ++i) CHECK_CLOSE(r.d_x[i], d_x[i], 10 * tolerance);
}

// Equal up to the order of float32 sums; bfloat16 also to its last bit, in which a gradient that differs in
// its own last bit may be rounded to the other side.
template <typename V>
void CheckSame(const char* what, const std::vector<V>& got, const std::vector<V>& want, double tolerance) {
  CHECK_TRUE(got.size() == want.size());
  int64_t different = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double x = ToFloat(got[i]), y = ToFloat(want[i]);
    if (x != y && !(std::fabs(x - y) <= (tolerance + (sizeof(V) == 2 ? 8e-3 : 0)) * (1.0 + std::fabs(y)))) {
      std::printf("%s[%d]: %.9g, the CPU's %.9g\n", what, static_cast<int>(i), x, y);
      CHECK_TRUE(false);
      return;
    }
    different += x != y;
  }
  if (sizeof(V) == 2) CHECK_TRUE(different <= 2 + static_cast<int64_t>(got.size()) / 50);
}

template <typename T>
void CheckAgainstCpu(const FanInOutput<T>& got, const FanInOutput<T>& want, double tolerance) {
  CheckSame("logits", got.logits, want.logits, tolerance);
  CheckSame("loss", got.loss, want.loss, tolerance);
  CheckSame("lse", got.lse, want.lse, tolerance);
  CheckSame("mass", got.mass, want.mass, tolerance);
  CHECK_TRUE(got.active == want.active);
  CheckSame("weights", got.weights, want.weights, 10 * tolerance);
  CheckSame("bias", got.bias, want.bias, 10 * tolerance);
  CheckSame("d_x", got.d_x, want.d_x, 10 * tolerance);
  for (int i = 0; i < kFanInMaxSlots; ++i) {
    CheckSame("slots", got.slots[i], want.slots[i], 10 * tolerance);
    CheckSame("bias_slots", got.bias_slots[i], want.bias_slots[i], 10 * tolerance);
  }
}

template <typename Device, typename T, typename Id>
void CheckProblem(const FanInProblem<T, Id>& p, FanInLoss loss, const FanInOptions& options) {
  ForEachLevel<Device>([&] {
    const FanInOutput<T> got = ComputeFanIn<Device>(p, loss, options);
    CHECK_TRUE((got == ComputeFanIn<Device>(p, loss, options, 3)));
    if (kOnCpu<Device>) {
      CheckOutput(p, loss, options, got);
    } else {
      CheckAgainstCpu(got, ComputeFanIn<FanInCpu>(p, loss, options), 1e-5 * std::sqrt(1.0 + p.fan_in));
    }
    if (options.rule != FanInRule::kNone || !options.inputs) return;
    FanInOptions alone = options;  // the gradient of the inputs by itself: the same bits
    alone.weights = false;
    const FanInOutput<T> of_inputs = ComputeFanIn<Device>(p, loss, alone, 3);
    CHECK_TRUE(SameBits(of_inputs.d_x, got.d_x) && SameBits(of_inputs.weights, p.weights));
  });
}

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_STEP_H_
