// The numbers and gradients whose products are those of cuBLASLt, against float64 and against the kernels.
#include "common/test/library_testing.cuh"
#include "full_softmax/full_softmax.h"
#include "full_softmax/test/full_softmax_cases.h"

namespace largeout {
namespace {

template <typename T, typename H>
SoftmaxResult<T, H> ByLibrary(const SoftmaxProblem<T, H>& p) {
  const AllowTf32 tf32;
  const AllowLibrary library;
  return RunSoftmax<FullSoftmaxGpu>(p);
}

template <typename T, typename H>
void Check(const SoftmaxProblem<T, H>& p) {
  const auto got = ByLibrary(p);
  SoftmaxResult<T, H> by_kernels;
  {
    const AllowTf32 tf32;
    by_kernels = RunSoftmax<FullSoftmaxGpu>(p);
  }
  const SoftmaxTruth want(p);
  CHECK_TRUE(!got.bad.found() && got == ByLibrary(p));
  const auto close = [](const auto& got, const auto& by_kernels, const auto& want) {
    CheckAsClose(got, by_kernels, want, 1.05, 1e-5);
  };
  close(got.lse, by_kernels.lse, want.lse);
  close(got.ce, by_kernels.ce, want.ce);
  close(got.sum, by_kernels.sum, want.sum);
  close(got.d_hidden, by_kernels.d_hidden, want.d_hidden);
  close(got.d_rows, by_kernels.d_rows, want.d_rows);
  close(got.d_bias, by_kernels.d_bias, want.d_bias);
}

LARGEOUT_TEST(AsCloseToFloat64AsTheKernels) {
  if (FoundLibrary() == nullptr) return;
  uint64_t seed = 0;
  for (const int64_t classes : {1, 2, 130, 700}) {
    for (const int64_t tokens : {1, 14, 137}) {
      for (const int64_t dim : {1, 5, 16, 33}) {
        const bool bias = ++seed % 3 != 0, skip = classes > 1 && seed % 4 == 0;
        if (seed % kOneOf != 0) continue;
        Check(SoftmaxProblem<float, float>(classes, tokens, dim, seed, bias, skip));
        Check(SoftmaxProblem<float, bfloat16>(classes, tokens, dim, seed, bias, skip));
        Check(SoftmaxProblem<bfloat16, bfloat16>(classes, tokens, dim, seed, bias, skip));
      }
    }
  }
}

// In the emulation these are several chunks of tokens and of classes.
LARGEOUT_TEST(AsCloseInChunks) {
  if (FoundLibrary() == nullptr) return;
  Check(SoftmaxProblem<float, float>(1300, 1200, 8, 1));
  Check(SoftmaxProblem<float, bfloat16>(1300, 700, 8, 2));
  Check(SoftmaxProblem<bfloat16, bfloat16>(1100, 1200, 8, 3, true, true));
}

// Rows whose addresses are those of their elements, no better.
LARGEOUT_TEST(MisalignedRows) {
  if (FoundLibrary() == nullptr) return;
  const ShiftedArrays shifted;
  Check(SoftmaxProblem<float, float>(300, 140, 12, 1));
  Check(SoftmaxProblem<float, bfloat16>(150, 40, 16, 2));
  Check(SoftmaxProblem<bfloat16, bfloat16>(150, 40, 16, 4));
}

LARGEOUT_TEST(ExtremeLogits) {
  if (FoundLibrary() == nullptr) return;
  SoftmaxProblem<float, float> p(700, 5, 3, 9);
  for (float& x : p.hidden) x *= 300.f;
  p.bias.assign(700, -INFINITY);
  p.bias[3] = 0.f, p.bias[650] = 1.f;
  for (int64_t t = 0; t < p.tokens; ++t) p.targets[t] = 3;
  const auto got = ByLibrary(p);
  for (int64_t t = 0; t < p.tokens; ++t)
    CHECK_TRUE(std::isfinite(got.ce[t]) && std::isfinite(got.d_hidden[3 * t]));
  p.hidden[0] = NAN;
  const auto nan = ByLibrary(p);
  CHECK_TRUE(std::isnan(nan.lse[0]) && std::isnan(nan.ce[0]) && std::isfinite(nan.ce[1]) &&
             std::isfinite(nan.d_hidden[4]));
  SoftmaxProblem<float, float> none(1, 2, 3, 9, true, true);
  none.targets = {0, -1};
  const auto of_none = ByLibrary(none);
  CHECK_TRUE(of_none.lse[0] == -INFINITY && std::isfinite(of_none.lse[1]) && of_none.d_hidden[0] == 0.f &&
             std::isfinite(of_none.d_rows[0]));
}

LARGEOUT_TEST(GradientsThatNobodyWants) {
  if (FoundLibrary() == nullptr) return;
  const SoftmaxProblem<float, bfloat16> p(300, 40, 16, 5);
  const auto all = ByLibrary(p);
  const AllowLibrary library;
  const SoftmaxOn<FullSoftmaxGpu, float, bfloat16, int64_t> on(p);
  const SoftmaxUpstream upstream{on.of_lse.get(), on.of_ce.get(), on.of_sum.get()};
  BadTarget bad;
  for (int wanted = 0; wanted < 2; ++wanted) {
    TestCall<GpuCall> terms, gradient;
    CUDA_OK(FullSoftmaxGpu(terms.get()).Terms(on.table, on.batch, on.terms(), &bad));
    SoftmaxBatchGradients<bfloat16, float> out{};
    if (wanted == 0) out.hidden = on.d_hidden.get();
    if (wanted == 1) out.rows = on.d_rows.get();
    CUDA_OK(FullSoftmaxGpu(gradient.get()).Gradient(on.table, on.batch, on.lse.get(), upstream, out, &bad));
  }
  CHECK_TRUE(SameBits(on.d_hidden.Host(), all.d_hidden) && SameBits(on.d_rows.Host(), all.d_rows));
}

#ifdef LARGEOUT_EMULATE_CUDA
// Which calls the library makes, and how many products each takes: three for a chunk, and one for the numbers.
LARGEOUT_TEST(ProductsAreTheLibrarys) {
  const auto products = [](auto run) {
    const int64_t before = emulation::Products();
    run();
    return emulation::Products() - before;
  };
  CHECK_TRUE(FoundLibrary() != nullptr);
  const SoftmaxProblem<float, float> floats(200, 30, 8, 1);
  const SoftmaxProblem<float, bfloat16> mixed(200, 30, 8, 1), chunks(1300, 700, 8, 1);
  const SoftmaxProblem<bfloat16, float> large_hidden(200, 30, 8, 1);
  CHECK_TRUE(products([&] { ByLibrary(floats); }) == 4);
  CHECK_TRUE(products([&] { ByLibrary(mixed); }) == 4);
  CHECK_TRUE(products([&] { ByLibrary(chunks); }) == 2 * 3 * 4);
  // Exact products of float32 are those of the kernels, and so are products that the library lacks.
  CHECK_TRUE(products([&] {
    const AllowLibrary library;
    RunSoftmax<FullSoftmaxGpu>(floats);
  }) == 0);
  CHECK_TRUE(products([&] { ByLibrary(large_hidden); }) == 0);
  const SoftmaxProblem<float, bfloat16> refused(201, 31, 9, 1);
  const auto by_kernels = RunSoftmax<FullSoftmaxGpu>(refused);
  emulation::RefuseProducts(true);
  CHECK_TRUE(products([&] { CHECK_TRUE(ByLibrary(refused) == by_kernels); }) == 0);
  emulation::RefuseProducts(false);
}
#endif

}  // namespace
}  // namespace largeout
