// What is out of range, extreme, or random: labels and indices are checked, candidates' gradients, NaN,
// rounding.
#include "fan_in/test/fan_in_testing.h"
#include "fan_in/fan_in_write.h"

namespace largeout {

LARGEOUT_TEST(LabelsAreChecked) {
  const FanInBatch batch(3, 4);
  FanInPositives positives;
  int64_t position;
  const int32_t ids[] = {7, -1, 5, 5, 9};
  const int64_t splits[] = {0, 2, 2, 5}, descending[] = {0, 3, 2, 5}, from_one[] = {1, 2, 2, 5},
                few[] = {0, 1, 2, 4};
  const float weights[] = {1, 2, 3, 4, 5};
  CHECK_TRUE(SortLabels(FanInLabels<int32_t>{ids, splits, weights, 5, 5, 10}, batch, 4, &positives,
                        &position) == FanInLabelStatus::kOk);
  CHECK_TRUE(positives.sorted.size() == 2 &&
             positives.block_start == (std::vector<int64_t>{0, 2}));  // 9 is elsewhere
  CHECK_TRUE(positives.sorted[0].row == 0 && positives.sorted[0].example == 2 &&
             positives.sorted[0].weight == 3.f);
  CHECK_TRUE(positives.sorted[1].row == 2 && positives.sorted[1].example == 0);
  CHECK_TRUE(SortLabels(FanInLabels<int32_t>{ids, splits, nullptr, 5, 5, 9}, batch, 4, &positives,
                        &position) == FanInLabelStatus::kBadLabel);
  CHECK_TRUE(position == 4);
  const int32_t negative[] = {7, -2, 5, 5, 9};
  CHECK_TRUE(SortLabels(FanInLabels<int32_t>{negative, splits, nullptr, 5, 5, 10}, batch, 4, &positives,
                        &position) == FanInLabelStatus::kBadLabel);
  CHECK_TRUE(position == 1);
  for (const int64_t* bad : {descending, from_one, few}) {
    CHECK_TRUE(SortLabels(FanInLabels<int32_t>{ids, bad, nullptr, 5, 5, 10}, batch, 4, &positives,
                          &position) == FanInLabelStatus::kBadSplits);
  }
}

// An index out of range is found by every pass, and nothing beyond the inputs is touched.
LARGEOUT_TEST(BadIndices) {
  SerialParallel serial;
  for (const uint32_t wrong : {20u, UINT32_MAX / 2, UINT32_MAX / 2 + 1, UINT32_MAX}) {
    FanInProblem<float, uint32_t> p(200, 4, 20, 5, 1);
    p.indices[150 * 4 + 2] = wrong;
    const FanInBatch& batch = p.batch;
    std::vector<float> blocks(batch.floats()), logits(batch.size * p.classes), d(batch.floats());
    FanInLayOut(batch, p.x.data(), blocks.data(), &serial);
    CHECK_TRUE(FanInLogits(p.layer(), batch, blocks.data(), logits.data(), &serial) == 150);
    std::vector<int64_t> rows(batch.size * 3);
    CHECK_TRUE(FanInTopK(p.layer(), batch, blocks.data(), 3, logits.data(), rows.data(), &serial) == 150);
    FanInPositives positives;
    int64_t position;
    SortLabels(p.label_lists(), batch, p.classes, &positives, &position);
    std::vector<uint8_t> active(FanInActiveBytes(batch, p.classes));
    CHECK_TRUE(FanInLossForward(p.layer(), batch, blocks.data(), FanInLoss::kSquaredHinge, positives,
                                {logits.data(), nullptr, nullptr, active.data()}, &serial) == 150);
    FanInGradients gradients;
    gradients.positives = &positives, gradients.grad_loss = p.grad_loss.data();
    FanInStep<float> step;
    step.weights = p.weights.data(), step.bias = p.bias.data();
    FanInLayer<float, uint32_t> layer = p.layer();
    const std::vector<float> weights = p.weights;
    layer.weights = weights.data();
    std::vector<float> scratch(FanInBackwardScratch(p.classes, p.fan_in, batch, true));
    CHECK_TRUE(FanInBackward(layer, batch, blocks.data(), gradients, step, d.data(), scratch.data(),
                             &serial) == 150);
  }
}

// With 65,536 inputs every uint16 is one; with 65,535 the largest is not.
LARGEOUT_TEST(AllInputsOfUint16) {
  SerialParallel serial;
  for (const int64_t inputs : {65536, 65535}) {
    FanInProblem<float, uint16_t> p(90, 3, inputs, 2, 1);
    p.indices[70 * 3 + 1] = UINT16_MAX;
    std::vector<float> blocks(p.batch.floats()), logits(p.batch.size * p.classes);
    FanInLayOut(p.batch, p.x.data(), blocks.data(), &serial);
    const int64_t bad = FanInLogits(p.layer(), p.batch, blocks.data(), logits.data(), &serial);
    CHECK_TRUE(bad == (inputs == 65536 ? -1 : 70));
    if (bad >= 0) continue;
    const std::vector<double> want = p.Logits();
    for (size_t i = 0; i < want.size(); ++i) CHECK_CLOSE(logits[i], want[i], 1e-5);
  }
}

LARGEOUT_TEST(CandidateGradients) {
  Random random(5);
  SerialParallel serial;
  ThreadParallel threads(3);
  for (const int64_t size : {5, 32, 70}) {
    const FanInProblem<bfloat16, uint16_t> p(300, 6, 50, size, size, true, true, -1.f);
    std::vector<float> blocks(p.batch.floats());
    FanInLayOut(p.batch, p.x.data(), blocks.data(), &serial);
    FanInPositives positives;
    int64_t position, bad;
    SortLabels(p.label_lists(), p.batch, p.classes, &positives, &position);
    std::vector<int32_t> candidates(150 * 9);
    for (int32_t& c : candidates) c = static_cast<int32_t>(random.Below(50));
    FanInGradients gradients;
    gradients.positives = &positives, gradients.grad_loss = p.grad_loss.data();
    std::vector<float> got(candidates.size(), NAN), again(got);
    CHECK_TRUE(FanInCandidateGradient(p.layer(), p.batch, blocks.data(), gradients, candidates.data(), 100,
                                      150, 9, got.data(), &bad, &serial) == -1 &&
               bad == -1);
    FanInCandidateGradient(p.layer(), p.batch, blocks.data(), gradients, candidates.data(), 100, 150, 9,
                           again.data(), &bad, &threads);
    CHECK_TRUE(got == again);
    std::vector<double> g;
    p.Losses(FanInLoss::kSquaredHinge, p.Logits(), &g);
    for (size_t i = 0; i < got.size(); ++i) {
      double want = 0;
      for (int64_t b = 0; b < size; ++b) want += g[b * p.classes + 100 + i / 9] * p.x[b * 50 + candidates[i]];
      CHECK_CLOSE(got[i], want, 1e-4);
    }
    candidates[11] = 50;
    FanInCandidateGradient(p.layer(), p.batch, blocks.data(), gradients, candidates.data(), 100, 150, 9,
                           again.data(), &bad, &threads);
    CHECK_TRUE(bad == 1);
  }
}

// Logits too large for caches are written past them: runs that begin and end within a cache line, lanes that
// don't fill a vector.
LARGEOUT_TEST(LargeLogits) {
  const FanInProblem<float, uint16_t> p(30011, 2, 50, 75, 1);
  CHECK_TRUE(p.batch.size * p.classes * 4 > kFanInCached);
  std::vector<float> blocks(p.batch.floats()), logits(p.batch.size * p.classes + 1, 7.f);
  SerialParallel serial;
  FanInLayOut(p.batch, p.x.data(), blocks.data(), &serial);
  ThreadParallel three(3);
  CHECK_TRUE(FanInLogits(p.layer(), p.batch, blocks.data(), logits.data(), &three) == -1);
  const std::vector<double> want = p.Logits();
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(logits[i] - want[i]));
  CHECK_TRUE(worst < 1e-5 && logits[want.size()] == 7.f);
}

LARGEOUT_TEST(ExtremeLogits) {
  SerialParallel serial;
  for (const FanInLoss loss : kFanInAllLosses) {
    FanInProblem<float, uint16_t> p(70, 3, 20, 4, 3);
    p.labels = {1000, 1001, 1002, 1003}, p.row_splits = {0, 1, 2, 3, 4};
    for (float& x : p.x) x *= 1000.f;
    const auto finite = ComputeFanIn(p, loss, {}, &serial);
    std::vector<double> g;
    const std::vector<double> want = p.Losses(FanInLoss::kSquaredHinge, p.Logits(), &g);
    for (int b = 0; b < 4; ++b) CHECK_TRUE(std::isfinite(finite.loss[b]));
    if (loss == FanInLoss::kSquaredHinge)
      for (int b = 0; b < 4; ++b) CHECK_CLOSE(finite.loss[b], want[b], 1e-5);
    for (int64_t i = 20; i < 40; ++i) p.x[i] = NAN;  // example 1
    const auto nan = ComputeFanIn(p, loss, {}, &serial);
    CHECK_TRUE(std::isnan(nan.loss[1]) && nan.loss[0] == finite.loss[0] && nan.loss[2] == finite.loss[2]);
    for (float w : nan.weights) CHECK_TRUE(std::isnan(w));
    for (int64_t i = 0; i < 20; ++i) CHECK_TRUE(std::isnan(nan.d_x[20 + i]) && nan.d_x[i] == finite.d_x[i]);
  }
}

// The mean over many keys is the value; NaN and infinity stay.
LARGEOUT_TEST(StochasticRounding) {
  const int64_t classes = 64, fan_in = 4;
  FanInProblem<bfloat16, uint16_t> p(classes, fan_in, 8, 2, 1, false);
  std::vector<double> mean(classes * fan_in);
  std::vector<float> given(2 * classes, 1e-3f), blocks(p.batch.floats());
  SerialParallel serial;
  FanInLayOut(p.batch, p.x.data(), blocks.data(), &serial);
  FromFloat(NAN, &p.weights[5]);
  FromFloat(INFINITY, &p.weights[6]);
  const float hyper[] = {1.f, 0.f};
  const int rounds = 4000;
  for (int round = 0; round < rounds; ++round) {
    std::vector<bfloat16> weights = p.weights;
    FanInGradients gradients;
    gradients.logits = given.data();
    FanInStep<bfloat16> step;
    step.rule = FanInRule::kSgd, step.weights = weights.data(), step.hyper = hyper,
    step.key = FanInKey(9, round);
    FanInLayer<bfloat16, uint16_t> layer = p.layer();
    layer.weights = weights.data();
    FanInBackward(layer, p.batch, blocks.data(), gradients, step, nullptr, nullptr, &serial);
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += ToFloat(weights[i]) / rounds;
  }
  CHECK_TRUE(std::isnan(mean[5]) && std::isinf(mean[6]));
  for (int64_t i = 0; i < classes * fan_in; ++i) {
    if (i == 5 || i == 6) continue;
    const double w = ToFloat(p.weights[i]),
                 g = 1e-3 * (p.Input(0, i / fan_in, i % fan_in) + p.Input(1, i / fan_in, i % fan_in));
    const double last_bit = std::ldexp(1.0, std::ilogb(std::max(std::fabs(w), 1e-3)) - 7);
    CHECK_TRUE(std::fabs(mean[i] - (w - g)) < 5.0 * last_bit / std::sqrt(rounds));
  }
}

}  // namespace largeout

int main() { return largeout::TestMain(); }
