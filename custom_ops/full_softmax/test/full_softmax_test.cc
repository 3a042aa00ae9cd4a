#include "full_softmax/full_softmax.h"

#include "full_softmax/test/full_softmax_cases.h"

namespace largeout {

LARGEOUT_FULL_SOFTMAX_CASES(FullSoftmaxCpu)

// What TermsAndGradient leaves: with the logits of all tokens kept, of some, or of none.
template <typename T>
void CheckBothAtOnce(SoftmaxProblem<T, float> p, const SoftmaxExpected& like) {
  std::vector<float> weights(p.tokens), positive(p.tokens);
  for (float& w : weights) w = static_cast<float>(p.random.Below(3));
  for (float& z : positive) z = 4.f * p.random.Normalish();
  SoftmaxExpected expected = like;
  expected.weights = weights.data();
  if (p.skip) expected.positive = positive.data();
  ForEachLevel<FullSoftmaxCpu>([&] {
    const auto terms = RunSoftmax<FullSoftmaxCpu>(p);
    for (int64_t t = 0; t < p.tokens; ++t) {
      p.of_lse[t] = expected.OfLse(t, terms.lse[t]), p.of_ce[t] = expected.OfCe(t),
      p.of_sum[t] = expected.OfSum(t);
    }
    for (const int64_t bytes : {int64_t{0}, int64_t{1} << 20, int64_t{1} << 30}) {
      for (const int threads : {1, 4}) {
        const SoftmaxOn<FullSoftmaxCpu, T, float, int64_t> on(p);
        TestCall<CpuCall> call(threads);
        BadTarget bad;
        CHECK_TRUE(FullSoftmaxCpu(call.get())
                       .TermsAndGradient(on.table, on.batch, expected, bytes, on.terms(), on.gradients(),
                                         &bad) == 0);
        CHECK_TRUE(!bad.found());
        CheckSoftmaxTruth(p, on.Result(bad));
        float factor;
        std::vector<float> of_lse = p.of_lse, of_ce = p.of_ce, of_sum = p.of_sum;
        for (auto* of : {&of_lse, &of_ce, &of_sum}) {
          for (float& x : *of) x *= -0.3f;
        }
        const SoftmaxUpstream upstream{of_lse.data(), of_ce.data(), of_sum.data()};
        CHECK_TRUE(IsExpected(expected, terms.lse.data(), upstream, p.tokens, &factor));
        CHECK_CLOSE(factor, -0.3, 1e-6);
        of_lse[p.tokens - 1] += 1.f;
        CHECK_TRUE(!IsExpected(expected, terms.lse.data(), upstream, p.tokens, &factor));
      }
    }
  });
}

LARGEOUT_TEST(BothAtOnce) {
  CheckBothAtOnce<float>({700, 300, 20, 1}, {nullptr, nullptr, 0.f, 0.f, 0.f});
  CheckBothAtOnce<float>({1500, 260, 33, 2}, {nullptr, nullptr, 0.1f, 0.1f / 1500, 0.01f});
  CheckBothAtOnce<float>({700, 300, 20, 4, true, true}, {nullptr, nullptr, 0.f, 0.f, 0.f});
  CheckBothAtOnce<bfloat16>({700, 300, 20, 3}, {nullptr, nullptr, 0.1f, 0.1f / 700, 0.f});
}

LARGEOUT_TEST(NothingIsExpectedOfNothing) {
  float factor = 7.f;
  CHECK_TRUE(
      IsExpected({nullptr, nullptr, 0.f, 0.f, 0.f}, nullptr, {nullptr, nullptr, nullptr}, 0, &factor) &&
      factor == 0.f);
  const float zero = 0.f, one = 1.f;
  CHECK_TRUE(!IsExpected({&zero, nullptr, 0.f, 0.f, 0.f}, &zero, {&zero, &one, &zero}, 1, &factor));
}

}  // namespace largeout
