// Logits, losses and gradients against float64, at every instruction-set level, with the same bits for 1 and
// 3 threads.
#include "fan_in/fan_in.h"

#include "common/isa.h"
#include "fan_in/test/fan_in_testing.h"

namespace largeout {
namespace {

// One weight by the formulas of row_update.h, in float64.
double Updated(FanInRule rule, const std::vector<float>& h, bool decays, double g, double w, double* s0,
               double* s1) {
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

template <typename T, typename Id>
void CheckProblem(const FanInProblem<T, Id>& p, FanInLoss loss, const FanInOptions& options) {
  SerialParallel serial;
  ThreadParallel threads(3);
  for (const Isa isa : {Isa::kGeneric, Isa::kV3, Isa::kV4}) {
    if (SetIsa(isa) != isa) continue;
    const FanInOutput<T> one = ComputeFanIn(p, loss, options, &serial);
    CHECK_TRUE(one == ComputeFanIn(p, loss, options, &threads));
    CheckOutput(p, loss, options, one);
    if (options.rule != FanInRule::kNone || !options.inputs) continue;
    FanInOptions alone = options;  // the gradient of the inputs by itself: the same bits
    alone.weights = false;
    const FanInOutput<T> of_inputs = ComputeFanIn(p, loss, alone, &threads);
    CHECK_TRUE(FanInOutput<T>::Same(of_inputs.d_x, one.d_x) &&
               FanInOutput<T>::Same(of_inputs.weights, p.weights));
  }
  SetIsa(Isa::kV4);
}

}  // namespace

LARGEOUT_TEST(EveryLossAndShape) {
  uint64_t seed = 1;
  for (const FanInLoss loss : kFanInAllLosses) {
    for (const int64_t fan_in : {1, 3, 16, 32, 37}) {
      for (const int64_t size : {1, 16, 17, 32, 45, 100}) {
        const int64_t classes = fan_in == 3 ? 507 : 123;
        CheckProblem(
            FanInProblem<float, uint16_t>(classes, fan_in, 40 + size, size, ++seed, size != 16, size != 32),
            loss, {});
      }
    }
    CheckProblem(FanInProblem<float, uint32_t>(1, 5, 5, 3, ++seed), loss, {});
    CheckProblem(FanInProblem<bfloat16, uint16_t>(252, 8, 70, 40, ++seed), loss, {});
    CheckProblem(FanInProblem<bfloat16, uint32_t>(65, 24, 33, 9, ++seed), loss, {});
  }
}

// Several ranges of classes, several spans of several blocks, mostly without gradients (a bias far below the
// margin).
LARGEOUT_TEST(ManyClasses) {
  for (const FanInLoss loss : kFanInAllLosses) {
    CheckProblem(FanInProblem<float, uint16_t>(9000, 2, 50, 20, 7, true, true, -3.f), loss, {});
  }
  const FanInProblem<float, uint32_t> wide(5000, 40, 41, 150, 8, true, true, -20.f);
  CheckProblem(wide, FanInLoss::kSquaredHinge, {});
  CheckProblem(wide, FanInLoss::kSquaredHinge, {FanInRule::kAdam});
}

LARGEOUT_TEST(EveryRule) {
  uint64_t seed = 100;
  for (const FanInRule rule :
       {FanInRule::kSgd, FanInRule::kAdagrad, FanInRule::kAdam, FanInRule::kLazyAdam}) {
    for (const int64_t size : {9, 32, 70}) {
      for (const float bias : {0.f, -4.f}) {
        const FanInProblem<float, uint16_t> p(300, 11, 64, size, ++seed, true, true, bias);
        CheckProblem(p, FanInLoss::kSquaredHinge, {rule});
        CheckProblem(p, FanInLoss::kSoftmax, {rule, false, size != 32});
      }
      CheckProblem(FanInProblem<float, uint32_t>(150, 7, 64, size, ++seed, false),
                   FanInLoss::kBinaryCrossentropy,
                   {rule, false, true, rule == FanInRule::kLazyAdam ? 0.f : 0.01f});
      CheckProblem(FanInProblem<bfloat16, uint16_t>(150, 17, 64, size, ++seed),
                   FanInLoss::kBinaryCrossentropy, {rule});
    }
  }
}

LARGEOUT_TEST(GivenGradients) {
  for (const int64_t size : {3, 32, 50}) {
    CheckProblem(FanInProblem<float, uint16_t>(200, 9, 64, size, size), FanInLoss::kBinaryCrossentropy,
                 {FanInRule::kNone, true});
    CheckProblem(FanInProblem<float, uint16_t>(200, 9, 64, size, size, false, true, 0.f),
                 FanInLoss::kSquaredHinge, {FanInRule::kNone, true});
  }
}

LARGEOUT_TEST(EmptyBatch) {
  SerialParallel serial;
  const FanInProblem<float, uint16_t> p(100, 4, 20, 0, 1);
  const auto gradient = ComputeFanIn(p, FanInLoss::kSoftmax, {}, &serial);
  CHECK_TRUE(gradient.loss.empty() && gradient.weights == std::vector<float>(400) &&
             gradient.bias == std::vector<float>(100));
  const auto sgd = ComputeFanIn(p, FanInLoss::kSquaredHinge, {FanInRule::kSgd}, &serial);
  CHECK_TRUE(sgd.weights == p.weights && sgd.bias == p.bias);
  CheckOutput(p, FanInLoss::kSquaredHinge, {FanInRule::kAdam},
              ComputeFanIn(p, FanInLoss::kSquaredHinge, {FanInRule::kAdam}, &serial));
}

}  // namespace largeout

int main() { return largeout::TestMain(); }
