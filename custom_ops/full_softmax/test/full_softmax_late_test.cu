// Terms and gradients of a softmax that wait for nothing: a bad target is taken for none, and a later call
// names it.
#include "common/test/on_stream.cuh"
#include "full_softmax/full_softmax.h"
#include "full_softmax/test/full_softmax_cases.h"

namespace largeout {
namespace {

struct Late {
  BadTarget of_terms, of_gradient;
  SoftmaxResult<float, float> result;
};

// A step as the two ops take it in a graph; each keeps what comes late to it.
template <typename Id>
Late Take(OnStream* of_terms, OnStream* of_gradient, const SoftmaxProblem<float, float>& p) {
  const SoftmaxOn<FullSoftmaxGpu, float, float, Id> on(p);
  Late late;
  const int64_t waits = OnStream::Waits();
  CUDA_OK(FullSoftmaxGpu(of_terms->call()).Terms(on.table, on.batch, on.terms(), &late.of_terms));
  CHECK_TRUE(OnStream::Waits() == waits);
  of_terms->Wait();
  if (late.of_terms.found()) return late;
  const int64_t before = OnStream::Waits();
  CUDA_OK(FullSoftmaxGpu(of_gradient->call())
              .Gradient(on.table, on.batch, on.lse.get(), {on.of_lse.get(), on.of_ce.get(), on.of_sum.get()},
                        on.gradients(), &late.of_gradient));
  CHECK_TRUE(OnStream::Waits() == before);
  of_gradient->Wait();
  late.result = on.Result(late.of_terms);
  return late;
}

template <typename Id>
void BadTargetsAreNamedLater() {
  OnStream terms, gradient;
  const SoftmaxProblem<float, float> good(50, 300, 4, 1);
  SoftmaxProblem<float, float> bad = good, none = good;
  bad.targets[207] = 50, bad.targets[299] = -9;
  none.targets[207] = none.targets[299] = -1;
  const Late first = Take<Id>(&terms, &gradient, bad), second = Take<Id>(&terms, &gradient, good),
             third = Take<Id>(&terms, &gradient, good);
  CHECK_TRUE(!first.of_terms.found() && !first.of_gradient.found());
  CHECK_TRUE(first.result == RunSoftmax<FullSoftmaxGpu>(none));
  CHECK_TRUE(second.of_terms.position == 207 && second.of_terms.value == 50);
  CHECK_TRUE(!third.of_terms.found() && !third.of_gradient.found());
  CHECK_TRUE(third.result == RunSoftmax<FullSoftmaxGpu>(good));
}

LARGEOUT_TEST(StepsWaitForNothingAndBadTargetsAreNamedLater) {
  BadTargetsAreNamedLater<int32_t>();
  BadTargetsAreNamedLater<int64_t>();
}

}  // namespace
}  // namespace largeout
