// Tests of top-k on any device against a full sort of the device's own logits: exact, ties by the smaller
// row.
#ifndef LARGEOUT_FAN_IN_FAN_IN_TOPK_CASES_H_
#define LARGEOUT_FAN_IN_FAN_IN_TOPK_CASES_H_

#include <numeric>

#include "fan_in/test/fan_in_step.h"

namespace largeout {

template <typename Device, typename T, typename Id>
void CheckTopK(const FanInProblem<T, Id>& p, int64_t k) {
  ForEachLevel<Device>([&] {
    const LayerOn<Device, T, Id> on(p);
    const ArrayOf<Device, float> scores_on(Unwritten<float>(p.batch.size * k));
    const ArrayOf<Device, int32_t> rows_on(Unwritten<int32_t>(p.batch.size * k));
    const ArrayOf<Device, int64_t> again_on(Unwritten<int64_t>(p.batch.size * k));
    TestCall<typename Device::Call> three(3), one;
    Device device(three.get(), p.batch), other(one.get(), p.batch);
    int64_t bad;
    const std::vector<float> logits = LogitsOf<Device>(p, &bad);
    CHECK_TRUE(on.LayOut(&device) == 0 && on.LayOut(&other) == 0);
    CHECK_TRUE(device.TopK(on.layer, k, scores_on.get(), rows_on.get(), &bad) == 0 && bad == -1);
    const std::vector<float> scores = scores_on.Host();
    const std::vector<int32_t> rows = rows_on.Host();
    for (int64_t b = 0; b < p.batch.size; ++b) {
      const float* z = logits.data() + b * p.classes;
      std::vector<int32_t> order(p.classes);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t i, int32_t j) {
        return z[i] > z[j] || (!std::isnan(z[i]) && std::isnan(z[j]));
      });
      for (int64_t i = 0; i < k; ++i) {
        CHECK_TRUE(rows[b * k + i] == order[i]);
        CHECK_TRUE(std::isnan(z[order[i]]) ? std::isnan(scores[b * k + i])
                                           : scores[b * k + i] == z[order[i]]);
      }
    }
    CHECK_TRUE(other.TopK(on.layer, k, scores_on.get(), again_on.get(), &bad) == 0);
    const std::vector<int64_t> again = again_on.Host();
    CHECK_TRUE(std::equal(rows.begin(), rows.end(), again.begin()));
  });
}

template <typename Device>
void EqualsASort() {
  for (const int64_t size : {1, 16, 33, 70}) {
    for (const int64_t k : {1, 5, 123})
      CheckTopK<Device>(FanInProblem<float, uint16_t>(123, 5, 30, size, k + size), k);
    CheckTopK<Device>(FanInProblem<bfloat16, uint32_t>(507, 3, 30, size, size, false), 20);
  }
  CheckTopK<Device>(FanInProblem<float, uint32_t>(9000, 2, 30, 8, 3), 10);    // several ranges
  CheckTopK<Device>(FanInProblem<float, uint32_t>(5000, 2, 30, 2, 4), 5000);  // k larger than a range
  CheckTopK<Device>(FanInProblem<float, uint16_t>(0, 2, 30, 2, 4), 0);
}

template <typename Device>
void Ties() {
  FanInProblem<float, uint16_t> p(3000, 2, 9, 20, 1);
  for (int64_t c = 0; c < p.classes; ++c) {  // few different classes, many times
    for (int k = 0; k < 2; ++k)
      p.weights[c * 2 + k] = static_cast<float>(c % 3),
                        p.indices[c * 2 + k] = static_cast<uint16_t>(c % 4 + k);
    p.bias[c] = c % 2 == 0 ? 0.f : -0.f;
  }
  for (const int64_t k : {1, 50, 2000}) CheckTopK<Device>(p, k);
}

template <typename Device>
void NanIsLowest() {
  FanInProblem<float, uint16_t> p(200, 3, 9, 5, 1);
  for (int64_t c = 0; c < p.classes; c += 2) p.bias[c] = c % 3 == 0 ? NAN : -INFINITY;
  for (int64_t i = 0; i < 9; ++i) p.x[2 * 9 + i] = NAN;
  for (const int64_t k : {3, 150, 200}) CheckTopK<Device>(p, k);
}

template <typename Device>
void BFloat16Inputs() {
  for (const int64_t size : {0, 1, 16, 45}) {
    FanInProblem<float, uint16_t> p(303, 7, 31, size, size);
    int64_t bad;
    p.RoundInputs();
    const std::vector<float> logits = LogitsOf<Device>(p, &bad);
    CheckTopK<Device>(p, 11);
    p.narrow = false;
    CHECK_TRUE(SameBits(logits, LogitsOf<Device>(p, &bad)));
  }
}

#define LARGEOUT_FAN_IN_TOPK_CASES(Device) \
  LARGEOUT_CASE(EqualsASort, Device)       \
  LARGEOUT_CASE(Ties, Device)              \
  LARGEOUT_CASE(NanIsLowest, Device)       \
  LARGEOUT_CASE(BFloat16Inputs, Device)

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_TOPK_CASES_H_
