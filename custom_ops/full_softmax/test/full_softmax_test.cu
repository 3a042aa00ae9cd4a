#include "common/test/cuda_testing.cuh"
#include "full_softmax/full_softmax.h"
#include "full_softmax/test/full_softmax_cases.h"

namespace largeout {
LARGEOUT_FULL_SOFTMAX_CASES(FullSoftmaxGpu)

// Factors of float32 are rounded where the call allows it, in the numbers and in their gradients.
LARGEOUT_TEST(EqualsFloat64InTf32) {
  constexpr double kInTf32 = 1.5e-3;
  for (const int64_t dim : {5, 40}) {
    const SoftmaxProblem<float, float> p(300, 140, dim, 1);
    const auto exact = RunSoftmax<FullSoftmaxGpu>(p);
    const AllowTf32 allowed;
    const auto got = RunSoftmax<FullSoftmaxGpu>(p);
    CheckSoftmaxTruth(p, got, kInTf32);
    CHECK_TRUE(!SameBits(got.lse, exact.lse) && !SameBits(got.d_rows, exact.d_rows) &&
               !SameBits(got.d_hidden, exact.d_hidden));
    CHECK_TRUE(got == RunSoftmax<FullSoftmaxGpu>(p));
    const SoftmaxProblem<float, bfloat16> halves(300, 140, dim, 2);
    CheckSoftmaxTruth(halves, RunSoftmax<FullSoftmaxGpu>(halves), kInBfloat16);
  }
}
}  // namespace largeout
