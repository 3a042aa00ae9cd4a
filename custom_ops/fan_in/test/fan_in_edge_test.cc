// Cases of any device, and of the CPU alone: labels are sorted there, and the random rounding is looked at
// over many keys.
#include "fan_in/test/fan_in_edge_cases.h"

namespace largeout {

LARGEOUT_FAN_IN_EDGE_CASES(FanInCpu)

// A chunk of classes that is left out takes its labels with it: the loss is that of the other chunks alone.
LARGEOUT_TEST(BadChunkTakesItsLabels) {
  const int64_t chunk = 64, fan_in = 3, inputs = 20, size = 5;
  for (const FanInLoss loss : kFanInAllLosses) {
    FanInProblem<float, uint32_t> p(3 * chunk, fan_in, inputs, size, 2), rest = p;
    p.labels.clear(), p.row_splits = {0}, p.label_weights.clear();
    rest.labels.clear(), rest.row_splits = {0}, rest.label_weights.clear();
    for (int64_t b = 0; b < size; ++b) {
      for (const int64_t row : {b, chunk - 1 - b, chunk + b, 2 * chunk + 7 * b}) {
        p.labels.push_back(p.first_class + row);
        if (row >= chunk) rest.labels.push_back(rest.first_class + row - chunk);
      }
      p.row_splits.push_back(static_cast<int64_t>(p.labels.size()));
      rest.row_splits.push_back(static_cast<int64_t>(rest.labels.size()));
    }
    p.indices[5 * fan_in + 1] = inputs;
    rest.classes = 2 * chunk;
    rest.weights.erase(rest.weights.begin(), rest.weights.begin() + chunk * fan_in);
    rest.indices.erase(rest.indices.begin(), rest.indices.begin() + chunk * fan_in);
    rest.bias.erase(rest.bias.begin(), rest.bias.begin() + chunk);
    const auto losses = [&](const FanInProblem<float, uint32_t>& problem, int64_t bad_row) {
      const LayerOn<FanInCpu, float, uint32_t> on(problem);
      std::vector<float> out(size), lse(size), mass(size);
      std::vector<uint8_t> active(FanInActiveBytes(problem.batch, problem.classes));
      TestCall<CpuCall> call;
      FanInCpu device(call.get(), problem.batch);
      int64_t bad;
      CHECK_TRUE(device.LayOut(on.x.get()) == 0);
      CHECK_TRUE(device.LossForward(on.layer, loss, on.positives,
                                    {out.data(), lse.data(), mass.data(), active.data()}, &bad) == 0);
      CHECK_TRUE(bad == bad_row);
      return out;
    };
    const std::vector<float> got = losses(p, 5), want = losses(rest, -1);
    for (int64_t b = 0; b < size; ++b) CHECK_CLOSE(got[b], want[b], 1e-6);
  }
}

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

// The mean over many keys is the value; NaN and infinity stay.
LARGEOUT_TEST(StochasticRounding) {
  const int64_t classes = 64, fan_in = 4;
  FanInProblem<bfloat16, uint16_t> p(classes, fan_in, 8, 2, 1, false);
  std::vector<double> mean(classes * fan_in);
  std::vector<float> given(2 * classes, 1e-3f);
  TestCall<CpuCall> call;
  FanInCpu device(call.get(), p.batch);
  CHECK_TRUE(device.LayOut(p.x.data()) == 0);
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
    step.key = RandomKey(9, round);
    FanInLayer<bfloat16, uint16_t> layer = p.layer();
    layer.weights = weights.data();
    int64_t bad;
    CHECK_TRUE(device.Backward(layer, gradients, step, /*input_gradient=*/false, &bad) == 0 && bad == -1);
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
