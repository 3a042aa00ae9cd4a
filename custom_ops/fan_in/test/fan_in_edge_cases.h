// Tests of what is out of range, extreme, or random, on any device: indices are checked, candidates'
// gradients, NaN, rounding.
#ifndef LARGEOUT_FAN_IN_FAN_IN_EDGE_CASES_H_
#define LARGEOUT_FAN_IN_FAN_IN_EDGE_CASES_H_

#include "common/test/repeat.h"
#include "fan_in/fan_in_write.h"
#include "fan_in/test/fan_in_step.h"

namespace largeout {

// An index out of range is found by every pass, its class (on CPUs its chunk of classes) is left out, and
// nothing beyond the inputs is touched.
template <typename Device>
void BadIndices() {
  for (const uint32_t wrong : {20u, UINT32_MAX / 2, UINT32_MAX / 2 + 1, UINT32_MAX}) {
    for (const bool twice : {false, true}) {
      FanInProblem<float, uint32_t> p(200, 4, 20, 5, 1);
      p.indices[150 * 4 + 2] = wrong;
      if (twice) p.indices[170 * 4] = wrong;
      const FanInBatch& batch = p.batch;
      const LayerOn<Device, float, uint32_t> on(p);
      const ArrayOf<Device, float> scores(batch.size * 3), loss(batch.size), lse(batch.size),
          mass(batch.size);
      const ArrayOf<Device, int64_t> rows(batch.size * 3);
      const ArrayOf<Device, uint8_t> active(FanInActiveBytes(batch, p.classes));
      int64_t bad;
      LogitsOf<Device>(p, &bad);
      CHECK_TRUE(bad == 150);
      TestCall<typename Device::Call> call;
      Device device(call.get(), batch);
      CHECK_TRUE(device.LayOut(on.x.get()) == 0);
      CHECK_TRUE(device.TopK(on.layer, 3, scores.get(), rows.get(), &bad) == 0 && bad == 150);
      for (const FanInLoss kind : kFanInAllLosses) {
        CHECK_TRUE(device.LossForward(on.layer, kind, on.positives,
                                      {loss.get(), lse.get(), mass.get(), active.get()}, &bad) == 0);
        CHECK_TRUE(bad == 150);
      }
      const ArrayOf<Device, float> hyper(std::vector<float>{0.1f, 0.f}), d_weights(p.weights), d_bias(p.bias);
      FanInStep<float> step;
      step.weights = d_weights.get(), step.bias = d_bias.get();
      const FanInGradients gradients = on.gradients(FanInLoss::kSquaredHinge);
      CHECK_TRUE(device.Backward(on.layer, gradients, step, true, &bad) == 0 && bad == 150);
      step.rule = FanInRule::kSgd, step.hyper = hyper.get();
      step.weights = on.weights.get(), step.bias = on.bias.get();
      CHECK_TRUE(device.Backward(on.layer, gradients, step, true, &bad) == 0 && bad == 150);
      const std::vector<float> weights = on.weights.Host();
      CHECK_TRUE(std::equal(&weights[150 * 4], &weights[151 * 4], &p.weights[150 * 4]));
      if (!kOnCpu<Device>) CHECK_TRUE(!std::equal(&weights[149 * 4], &weights[150 * 4], &p.weights[149 * 4]));
    }
  }
}

// With 65,536 inputs every uint16 is one; with 65,535 the largest is not.
template <typename Device>
void AllInputsOfUint16() {
  for (const int64_t inputs : {65536, 65535}) {
    FanInProblem<float, uint16_t> p(90, 3, inputs, 2, 1);
    p.indices[70 * 3 + 1] = UINT16_MAX;
    int64_t bad;
    const std::vector<float> logits = LogitsOf<Device>(p, &bad);
    CHECK_TRUE(bad == (inputs == 65536 ? -1 : 70));
    if (bad >= 0) continue;
    const std::vector<double> want = p.Logits();
    for (size_t i = 0; i < want.size(); ++i) CHECK_CLOSE(logits[i], want[i], 1e-5);
  }
}

template <typename Device, typename T, typename Id>
std::vector<float> CandidateGradient(const FanInProblem<T, Id>& p, const std::vector<int32_t>& candidates,
                                     int64_t first, int64_t rows, int64_t* bad_candidate, int threads = 1) {
  const LayerOn<Device, T, Id> on(p);
  const ArrayOf<Device, int32_t> candidates_on(candidates);
  const ArrayOf<Device, float> got(Unwritten<float>(static_cast<int64_t>(candidates.size())));
  TestCall<typename Device::Call> call(threads);
  Device device(call.get(), p.batch);
  int64_t bad;
  CHECK_TRUE(on.LayOut(&device) == 0);
  CHECK_TRUE(device.CandidateGradient(on.layer, on.gradients(FanInLoss::kSquaredHinge), candidates_on.get(),
                                      first, rows, static_cast<int64_t>(candidates.size()) / rows, got.get(),
                                      &bad, bad_candidate) == 0);
  CHECK_TRUE(bad == -1);
  return got.Host();
}

template <typename Device>
void CandidateGradients() {
  Random random(5);
  for (const int64_t size : {5, 32, 70}) {
    FanInProblem<bfloat16, uint16_t> p(300, 6, 50, size, size, true, true, -1.f);
    std::vector<int32_t> candidates(150 * 9);
    for (int32_t& c : candidates) c = static_cast<int32_t>(random.Below(50));
    int64_t bad;
    const std::vector<float> got = CandidateGradient<Device>(p, candidates, 100, 150, &bad);
    CHECK_TRUE(bad == -1);
    CHECK_TRUE(got == CandidateGradient<Device>(p, candidates, 100, 150, &bad, 3));
    const std::vector<float> cpu = CandidateGradient<FanInCpu>(p, candidates, 100, 150, &bad);
    std::vector<double> g;
    p.Losses(FanInLoss::kSquaredHinge, p.Logits(), &g);
    for (size_t i = 0; i < got.size(); ++i) {
      double want = 0;
      for (int64_t b = 0; b < size; ++b) want += g[b * p.classes + 100 + i / 9] * p.x[b * 50 + candidates[i]];
      CHECK_CLOSE(got[i], kOnCpu<Device> ? want : cpu[i], 1e-4);
    }
    for (const int64_t at : {int64_t{33 * 9 + 4}, int64_t{11}}) {  // from now on there is one more
      candidates[at] = 50;
      CandidateGradient<Device>(p, candidates, 100, 150, &bad, 3);
      CHECK_TRUE(bad == at / 9);
    }
    for (int32_t& c : candidates) c %= 50;
    p.RoundInputs();
    const std::vector<float> narrow = CandidateGradient<Device>(p, candidates, 100, 150, &bad);
    p.narrow = false;
    CHECK_TRUE(SameBits(narrow, CandidateGradient<Device>(p, candidates, 100, 150, &bad)));
  }
}

// Logits too large for a CPU's caches are written past them: runs that begin and end within a cache line,
// lanes that don't fill a vector.
template <typename Device>
void LargeLogits() {
  const FanInProblem<float, uint16_t> p(30011, 2, 50, 75, 1);
  const int64_t n = p.batch.size * p.classes;
  CHECK_TRUE(n * 4 > kFanInCached);
  const LayerOn<Device, float, uint16_t> on(p);
  const ArrayOf<Device, float> logits_on(std::vector<float>(n + 1, 7.f));
  TestCall<typename Device::Call> call(3);
  Device device(call.get(), p.batch);
  int64_t bad;
  CHECK_TRUE(device.LayOut(on.x.get()) == 0 && device.Logits(on.layer, logits_on.get(), &bad) == 0);
  const std::vector<float> logits = logits_on.Host();
  const std::vector<double> want = p.Logits();
  int64_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) wrong += !(std::abs(logits[i] - want[i]) < 1e-5);  // NaN, too
  CHECK_TRUE(bad == -1 && wrong == 0 && logits[n] == 7.f);
}

template <typename Device>
void ExtremeLogits() {
  for (const FanInLoss loss : kFanInAllLosses) {
    FanInProblem<float, uint16_t> p(70, 3, 20, 4, 3);
    p.labels = {1000, 1001, 1002, 1003}, p.row_splits = {0, 1, 2, 3, 4};
    for (float& x : p.x) x *= 1000.f;
    const auto finite = ComputeFanIn<Device>(p, loss, {});
    std::vector<double> g;
    const std::vector<double> want = p.Losses(FanInLoss::kSquaredHinge, p.Logits(), &g);
    for (int b = 0; b < 4; ++b) CHECK_TRUE(std::isfinite(finite.loss[b]));
    if (loss == FanInLoss::kSquaredHinge)
      for (int b = 0; b < 4; ++b) CHECK_CLOSE(finite.loss[b], want[b], 1e-5);
    for (int64_t i = 20; i < 40; ++i) p.x[i] = NAN;  // example 1
    const auto nan = ComputeFanIn<Device>(p, loss, {});
    CHECK_TRUE(std::isnan(nan.loss[1]) && nan.loss[0] == finite.loss[0] && nan.loss[2] == finite.loss[2]);
    for (float w : nan.weights) CHECK_TRUE(std::isnan(w));
    for (int64_t i = 0; i < 20; ++i) CHECK_TRUE(std::isnan(nan.d_x[20 + i]) && nan.d_x[i] == finite.d_x[i]);
  }
}

// bfloat16 weights far above their updates: they move in the mean, on GPUs by the CPU's random numbers.
template <typename Device>
void RoundsLikeTheCpu() {
  FanInProblem<bfloat16, uint16_t> p(3000, 8, 40, 4, 11);
  for (bfloat16& w : p.weights) FromFloat(1.f, &w);
  for (float& v : p.x) v = 1.f;
  for (float& g : p.grad_loss) g = 1e-4f;
  const FanInOptions sgd{FanInRule::kSgd};
  const auto want = ComputeFanIn<FanInCpu>(p, FanInLoss::kBinaryCrossentropy, sgd);
  const auto got = ComputeFanIn<Device>(p, FanInLoss::kBinaryCrossentropy, sgd, 3);
  int64_t different = 0, moved = 0;
  for (size_t i = 0; i < p.weights.size(); ++i) {
    different += got.weights[i].bits != want.weights[i].bits;
    moved += got.weights[i].bits != p.weights[i].bits;
  }
  CHECK_TRUE(different <= 5 && moved > 100 && moved < static_cast<int64_t>(p.weights.size()) / 4);
}

template <typename Device>
void GradientsAmidOtherWork() {
  const FanInProblem<float, uint16_t> p(300, 6, 50, 33, 1);
  const FanInProblem<bfloat16, uint32_t> other(90, 3, 20, 5, 2);
  for (const FanInRule rule : {FanInRule::kNone, FanInRule::kLazyAdam}) {
    CheckRepeats<Device>([&] { return ComputeFanIn<Device>(p, FanInLoss::kSoftmax, {rule}); },
                         [&] { ComputeFanIn<Device>(other, FanInLoss::kSquaredHinge, {}); });
  }
}

#define LARGEOUT_FAN_IN_EDGE_CASES(Device)  \
  LARGEOUT_CASE(BadIndices, Device)         \
  LARGEOUT_CASE(AllInputsOfUint16, Device)  \
  LARGEOUT_CASE(CandidateGradients, Device) \
  LARGEOUT_CASE(LargeLogits, Device)        \
  LARGEOUT_CASE(ExtremeLogits, Device)      \
  LARGEOUT_CASE(RoundsLikeTheCpu, Device)   \
  LARGEOUT_CASE(GradientsAmidOtherWork, Device)

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_EDGE_CASES_H_
