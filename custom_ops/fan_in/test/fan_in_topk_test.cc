// Top-k against a full sort of the kernel's own logits: exact, ties by the smaller row.
#include <numeric>

#include "common/isa.h"
#include "fan_in/test/fan_in_testing.h"

namespace largeout {
namespace {

template <typename T, typename Id>
void Check(const FanInProblem<T, Id>& p, int64_t k) {
  SerialParallel serial;
  ThreadParallel threads(3);
  for (const Isa isa : {Isa::kGeneric, Isa::kV3, Isa::kV4}) {
    if (SetIsa(isa) != isa) continue;
    std::vector<float> blocks(p.batch.floats()), logits(p.batch.size * p.classes),
        scores(p.batch.size * k, NAN);
    FanInLayOut(p.batch, p.x.data(), blocks.data(), &serial);
    FanInLogits(p.layer(), p.batch, blocks.data(), logits.data(), &serial);
    std::vector<int32_t> rows(p.batch.size * k, -1);
    std::vector<int64_t> again(rows.size());
    CHECK_TRUE(FanInTopK(p.layer(), p.batch, blocks.data(), k, scores.data(), rows.data(), &threads) == -1);
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
    FanInTopK(p.layer(), p.batch, blocks.data(), k, scores.data(), again.data(), &serial);
    CHECK_TRUE(std::equal(rows.begin(), rows.end(), again.begin()));
  }
  SetIsa(Isa::kV4);
}

}  // namespace

LARGEOUT_TEST(EqualsASort) {
  for (const int64_t size : {1, 16, 33, 70}) {
    for (const int64_t k : {1, 5, 123}) Check(FanInProblem<float, uint16_t>(123, 5, 30, size, k + size), k);
    Check(FanInProblem<bfloat16, uint32_t>(507, 3, 30, size, size, false), 20);
  }
  Check(FanInProblem<float, uint32_t>(9000, 2, 30, 8, 3), 10);    // several ranges
  Check(FanInProblem<float, uint32_t>(5000, 2, 30, 2, 4), 5000);  // k larger than a range
}

LARGEOUT_TEST(Ties) {
  FanInProblem<float, uint16_t> p(3000, 2, 9, 20, 1);
  for (int64_t c = 0; c < p.classes; ++c) {  // few different classes, many times
    for (int k = 0; k < 2; ++k)
      p.weights[c * 2 + k] = static_cast<float>(c % 3),
                        p.indices[c * 2 + k] = static_cast<uint16_t>(c % 4 + k);
    p.bias[c] = c % 2 == 0 ? 0.f : -0.f;
  }
  for (const int64_t k : {1, 50, 2000}) Check(p, k);
}

LARGEOUT_TEST(NanIsLowest) {
  FanInProblem<float, uint16_t> p(200, 3, 9, 5, 1);
  for (int64_t c = 0; c < p.classes; c += 2) p.bias[c] = c % 3 == 0 ? NAN : -INFINITY;
  for (int64_t i = 0; i < 9; ++i) p.x[2 * 9 + i] = NAN;
  for (const int64_t k : {3, 150, 200}) Check(p, k);
}

}  // namespace largeout

int main() { return largeout::TestMain(); }
