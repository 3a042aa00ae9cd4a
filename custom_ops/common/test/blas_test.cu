// Tests of common/cuda/blas.h: products of every layout against float64.
#include <cmath>
#include <utility>
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

// Long sums of one sign, in which whatever is narrower than float32 would show. Any order of float32 additions is off by
// at most depth x 2^-24 of the sum, and factors of float that keep 11 bits by 2^-10 each.
template <typename F>
void CheckLongSums(Blas* blas, int64_t depth, bool transposed_a, bool transposed_b, bool add) {
  constexpr int64_t kM = 8, kN = 16;
  Random random(depth);
  std::vector<F> a(kM * depth), b(kN * depth);
  for (F& x : a) FromFloat(0.5f + static_cast<float>(random.Unit()), &x);
  for (F& x : b) FromFloat(0.5f + static_cast<float>(random.Unit()), &x);
  const OnGpu<F> on_a(a), on_b(b);
  const OnGpu<float> out(std::vector<float>(kM * kN, 3.f));
  TestCall<GpuCall> call;
  CHECK_TRUE(blas->Multiply({kM, kN, depth},
                            BlasFactor<F>{on_a.get(), transposed_a ? kM : depth, transposed_a},
                            BlasFactor<F>{on_b.get(), transposed_b ? depth : kN, transposed_b}, add,
                            out.get(), kN, call.Allocate(Blas::kWorkspaceBytes), nullptr) == 0);
  const std::vector<float> got = out.Host();
  const double bound = depth * std::ldexp(1.0, -24) + (sizeof(F) == 4 ? std::ldexp(2.0, -10) : 0.0);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      double want = add ? 3.0 : 0.0;
      for (int64_t d = 0; d < depth; ++d) {
        want += double(ToFloat(a[transposed_a ? d * kM + i : i * depth + d])) *
                ToFloat(b[transposed_b ? j * depth + d : d * kN + j]);
      }
      CHECK_TRUE(std::fabs(got[i * kN + j] - want) <= bound * want);
    }
  }
}

// The products of a dense layer: forward, and both gradients.
LARGEOUT_TEST(LongSums) {
  Blas* const blas = FoundLibrary();
  if (blas == nullptr) return;
  for (const int64_t depth : {4000, 40000}) {
    for (const auto& [transposed_a, transposed_b] : {std::pair(false, true), {true, false}, {false, false}}) {
      CheckLongSums<float>(blas, depth, transposed_a, transposed_b, transposed_a);
      CheckLongSums<bfloat16>(blas, depth, transposed_a, transposed_b, transposed_a);
    }
  }
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
