// Tests of common/cuda/blas.h: products of every layout against float64.
#include <cmath>
#include <vector>

#include "common/test/library_testing.cuh"

namespace largeout {
namespace {

// Whole numbers, which no type rounds: sums are exact. What is beyond a row's end is NaN.
template <typename F>
std::vector<F> Matrix(int64_t rows, int64_t columns, int64_t stride, Random* random) {
  std::vector<F> values(rows * stride);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < stride; ++c)
      FromFloat(c < columns ? static_cast<float>(random->Below(17)) - 8.f : NAN, &values[r * stride + c]);
  }
  return values;
}

template <typename F>
void CheckProduct(Blas* blas, const BlasSizes& sizes, int64_t pad, bool transposed_a, bool transposed_b, bool add) {
  Random random(sizes.rows * 31 + sizes.columns * 7 + sizes.depth);
  const int64_t m = sizes.rows, n = sizes.columns, k = sizes.depth;
  const int64_t stride_a = (transposed_a ? m : k) + pad, stride_b = (transposed_b ? k : n) + pad, stride = n + pad;
  const auto a = transposed_a ? Matrix<F>(k, m, stride_a, &random) : Matrix<F>(m, k, stride_a, &random);
  const auto b = transposed_b ? Matrix<F>(n, k, stride_b, &random) : Matrix<F>(k, n, stride_b, &random);
  const std::vector<float> before(m * stride, 3.f);
  const OnGpu<F> on_a(a), on_b(b);
  const OnGpu<float> out(before);
  TestCall<GpuCall> call;
  const int error = blas->Multiply(
      sizes, BlasFactor<F>{on_a.get(), stride_a, transposed_a}, BlasFactor<F>{on_b.get(), stride_b, transposed_b},
      add, out.get(), stride, call.Allocate(Blas::kWorkspaceBytes), nullptr);
  if (error == kNoProduct && ShiftedArrays::Shift() > 0) return;  // the library may lack those
  CHECK_TRUE(error == 0);
  const std::vector<float> got = out.Host();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double want = add ? 3.0 : 0.0;
      for (int64_t d = 0; d < k; ++d) {
        want += double(ToFloat(a[transposed_a ? d * stride_a + i : i * stride_a + d])) *
                ToFloat(b[transposed_b ? j * stride_b + d : d * stride_b + j]);
      }
      CHECK_TRUE(got[i * stride + j] == want);
    }
    for (int64_t j = n; j < stride; ++j) CHECK_TRUE(got[i * stride + j] == 3.f);
  }
}

template <typename F>
void CheckLayouts(Blas* blas, const BlasSizes& sizes, int64_t pad) {
  for (int layout = 0; layout < 8; ++layout)
    CheckProduct<F>(blas, sizes, pad, (layout & 1) != 0, (layout & 2) != 0, (layout & 4) != 0);
}

LARGEOUT_TEST(EveryLayout) {
  Blas* const blas = FoundLibrary();
  if (blas == nullptr) return;
  for (const BlasSizes& sizes : {BlasSizes{1, 1, 1}, {5, 3, 7}, {64, 32, 16}, {40, 130, 24}}) {
    CheckLayouts<float>(blas, sizes, 0);
    CheckLayouts<bfloat16>(blas, sizes, 8);
  }
  const ShiftedArrays shifted;
  CheckLayouts<float>(blas, {17, 9, 12}, 1);
  CheckLayouts<bfloat16>(blas, {17, 9, 12}, 1);
}

#ifdef LARGEOUT_EMULATE_CUDA
// What the library said of sizes is kept: each case has its own.
int MultiplyOnes(const float* first, int64_t columns) {
  const OnGpu<float> second(std::vector<float>(64, 1.f)), out(64);
  TestCall<GpuCall> call;
  return FoundLibrary()->Multiply({8, columns, 8}, BlasFactor<float>{first, 8, false},
                                  BlasFactor<float>{second.get(), 8, false}, false, out.get(), 8,
                                  call.Allocate(Blas::kWorkspaceBytes), nullptr);
}

LARGEOUT_TEST(WhatTheLibraryLacks) {
  const OnGpu<float> first(std::vector<float>(64, 1.f));
  emulation::RefuseProducts(true);
  CHECK_TRUE(MultiplyOnes(first.get(), 8) == kNoProduct);
  emulation::RefuseProducts(false);
  CHECK_TRUE(MultiplyOnes(first.get(), 4) == 0);
}

#ifndef __SANITIZE_ADDRESS__  // which does not know what has been written
LARGEOUT_TEST(AFactorThatNothingHasWritten) {
  const OnGpu<float> unwritten(64);
  emulation::Collected collected;
  CHECK_TRUE(MultiplyOnes(unwritten.get(), 2) == kNoProduct);
  CHECK_TRUE(collected.Has({"cublasLtMatmul", "nothing has written"}));
}
#endif  // __SANITIZE_ADDRESS__
#endif  // LARGEOUT_EMULATE_CUDA

}  // namespace
}  // namespace largeout
