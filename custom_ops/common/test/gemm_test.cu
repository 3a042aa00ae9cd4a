// Tests of common/cuda/gemm/: products of every kind against float64, with tails in every dimension.
#include <cmath>

#include "common/cuda/gemm/multiply.cuh"
#include "common/cuda/gemm/softmax_terms.cuh"
#include "common/cuda/launch.cuh"
#include "common/test/cuda_testing.cuh"
#include "common/test/factors.h"

namespace largeout {
namespace {

// c [m, n] = a b: a is [m, k], or [k, m] where it does not run along k; b [n, k] or [k, n]. A tile a block,
// and a block has all tiles of its rows, one after another. kRounds: float32 factors are rounded, to
// bfloat16; tf32: to TF32.
template <class Shape, bool kAAlongK, bool kBAlongK, bool kRounds, typename A, typename B>
__global__ void __launch_bounds__(kTileThreads)
    Product(const A* a, const B* b, int m, int n, int k, int stride_a, int stride_b, bool aligned, bool tf32,
            float* c) {
  const int row = blockIdx.x * Shape::kM;
  for (int column = 0; column < n; column += Shape::kN) {
    const auto x = kAAlongK ? PartOf<kRounds>(a, stride_a, m, k, row, 0, aligned)
                            : PartOf<kRounds>(a, stride_a, k, m, 0, row, aligned);
    const auto y = kBAlongK ? PartOf<kRounds>(b, stride_b, n, k, column, 0, aligned)
                            : PartOf<kRounds>(b, stride_b, k, n, 0, column, aligned);
    float acc[Shape::kTM][Shape::kTN] = {};
    MultiplyTile<Shape, kAAlongK, kBAlongK>(x, y, 0, k, tf32, DynamicShared<char>(), acc, NothingEachK());
    StoreTile<Shape>(
        acc, m - row, n - column, n % 2 == 0,
        [&](int r) { return c + static_cast<int64_t>(row + r) * n + column; },
        [](int) -> const float* { return nullptr; });
  }
}

template <typename X>
std::vector<X> Matrix(int rows, int columns, int stride, Random* random) {
  std::vector<X> values(static_cast<size_t>(rows) * stride);
  for (X& x : values) FromFloat(NAN, &x);  // what is beyond a row's end
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < columns; ++i)
      FromFloat(random->Normalish(), &values[static_cast<size_t>(r) * stride + i]);
  }
  return values;
}

// tolerance: of the sum of the sizes of the terms.
template <typename T, class Shape, bool kAAlongK, bool kBAlongK, bool kRounds, typename A, typename B>
void CheckProduct(int m, int n, int k, int pad, int offset, double tolerance, bool tf32) {
  Random random(m * 31 + n * 7 + k);
  const int stride_a = (kAAlongK ? k : m) + pad, stride_b = (kBAlongK ? k : n) + pad;
  std::vector<A> a = Matrix<A>(kAAlongK ? m : k, kAAlongK ? k : m, stride_a, &random);
  std::vector<B> b = Matrix<B>(kBAlongK ? n : k, kBAlongK ? k : n, stride_b, &random);
  std::vector<A> moved_a(offset + a.size());
  std::vector<B> moved_b(offset + b.size());
  std::copy(a.begin(), a.end(), moved_a.begin() + offset);
  std::copy(b.begin(), b.end(), moved_b.begin() + offset);
  const OnGpu<A> on_a(moved_a);
  const OnGpu<B> on_b(moved_b);
  const OnGpu<float> c(static_cast<int64_t>(m) * n);
  const A* first_a = on_a.get() + offset;
  const B* first_b = on_b.get() + offset;
  const bool aligned = RowsCopied(stride_a, first_a) && RowsCopied(stride_b, first_b);
  CUDA_OK(Launch(Product<Shape, kAAlongK, kBAlongK, kRounds, A, B>,
                 static_cast<unsigned>((m + Shape::kM - 1) / Shape::kM), kTileThreads,
                 kTileBytes<Shape, kAAlongK, kBAlongK, RowOperand<A, kRounds>, RowOperand<B, kRounds>>,
                 nullptr, first_a, first_b, m, n, k, stride_a, stride_b, aligned, tf32, c.get()));
  const std::vector<float> got = c.Host();
  const auto factor = [&](auto x) { return tf32 ? Tf32Factor(ToFloat(x)) : Factor(x, kRounds); };
  double worst = 0.0;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double want = 0.0, size = 0.0;
      for (int step = 0; step < k; ++step) {
        const double term = factor(a[kAAlongK ? i * stride_a + step : step * stride_a + i]) *
                            factor(b[kBAlongK ? j * stride_b + step : step * stride_b + j]);
        want += term, size += std::fabs(term);
      }
      const double error = std::fabs(got[static_cast<size_t>(i) * n + j] - want);
      if (!(error <= tolerance * size)) worst = std::max(worst, std::isnan(error) ? INFINITY : error / size);
    }
  }
  if (worst > 0.0) std::printf("  %d x %d x %d: off by %.3g of the terms\n", m, n, k, worst);
  CHECK_TRUE(worst == 0.0);
}

template <typename T, bool kAAlongK, bool kBAlongK, typename A, typename B, bool kRounds = false>
void CheckShapes(double tolerance, bool tf32 = false) {
  using LargeM = typename Tiles<T>::LargeM;
  using SmallM = typename Tiles<T>::SmallM;
  CheckProduct<T, SmallM, kAAlongK, kBAlongK, kRounds, A, B>(17, 130, 48, 0, 0, tolerance, tf32);
  CheckProduct<T, SmallM, kAAlongK, kBAlongK, kRounds, A, B>(1, 3, 1, 0, 0, tolerance, tf32);  // one step
  CheckProduct<T, SmallM, kAAlongK, kBAlongK, kRounds, A, B>(24, 64, 40, 8, 0, tolerance,
                                                             tf32);  // columns that are not multiplied
  CheckProduct<T, SmallM, kAAlongK, kBAlongK, kRounds, A, B>(32, 16, 32, 0, 1, tolerance,
                                                             tf32);  // misaligned
  CheckProduct<T, LargeM, kAAlongK, kBAlongK, kRounds, A, B>(40, 72, 21, 3, 0, tolerance, tf32);
  CheckProduct<T, LargeM, kAAlongK, kBAlongK, kRounds, A, B>(136, 128, 36, 4, 0, tolerance, tf32);
}

template <bool kAAlongK, bool kBAlongK>
void CheckKinds() {
  CheckShapes<float, kAAlongK, kBAlongK, float, float>(6e-7);
  CheckShapes<float, kAAlongK, kBAlongK, float, float>(6e-7, true);
  CheckShapes<bfloat16, kAAlongK, kBAlongK, float, bfloat16>(2e-5);
  CheckShapes<bfloat16, kAAlongK, kBAlongK, float, float>(3e-5);
  CheckShapes<bfloat16, kAAlongK, kBAlongK, bfloat16, bfloat16>(6e-7);
  CheckShapes<bfloat16, kAAlongK, kBAlongK, float, float, true>(6e-7);
  CheckShapes<bfloat16, kAAlongK, kBAlongK, bfloat16, float, true>(6e-7);
}

LARGEOUT_TEST(ProductsOfRows) { CheckKinds<true, true>(); }
LARGEOUT_TEST(ProductsWithColumns) { CheckKinds<true, false>(); }
LARGEOUT_TEST(ProductsOfColumns) { CheckKinds<false, false>(); }

// In a long sum of one sign, cuts in the tensor cores' own sums would show.
LARGEOUT_TEST(LongSums) {
  Random random(5);
  const int m = 4, n = 8, k = 4000;
  std::vector<float> a(m * k), b(n * k);
  for (float& x : a) x = 0.5f + static_cast<float>(random.Unit());
  for (float& x : b) x = 0.5f + static_cast<float>(random.Unit());
  const OnGpu<float> on_a(a), on_b(b), c(m * n);
  using Shape = Tiles<float>::SmallM;
  CUDA_OK(Launch(Product<Shape, true, true, false, float, float>, 1, kTileThreads,
                 kTileBytes<Shape, true, true, RowOperand<float>, RowOperand<float>>, nullptr, on_a.get(),
                 on_b.get(), m, n, k, k, k, true, false, c.get()));
  const std::vector<float> got = c.Host();
  for (int i = 0; i < m * n; ++i) {
    double want = 0.0;
    for (int step = 0; step < k; ++step) want += double{a[i / n * k + step]} * b[i % n * k + step];
    CHECK_TRUE(std::fabs(got[i] - want) <= 1.5e-6 * want);
  }
}

// Numbers that a split could spoil: zeros of both signs, tiny, large, infinite, NaN.
LARGEOUT_TEST(SpecialNumbers) {
  const std::vector<float> numbers{0.f,    -0.f, 1e-38f,   -1e-38f,   1e-45f, 3e38f,
                                   -3e38f, 1.f,  INFINITY, -INFINITY, NAN};
  const int m = static_cast<int>(numbers.size()), k = 16, n = 8;
  std::vector<float> a(m * k), b(n * k);
  for (int i = 0; i < m; ++i) a[i * k + 3] = numbers[i];
  for (int j = 0; j < n; ++j) b[j * k + 3] = 1.f;
  const OnGpu<float> on_a(a), on_b(b), c(m * n);
  using Shape = Tiles<float>::SmallM;
  CUDA_OK(Launch(Product<Shape, true, true, false, float, float>, 1, kTileThreads,
                 kTileBytes<Shape, true, true, RowOperand<float>, RowOperand<float>>, nullptr, on_a.get(),
                 on_b.get(), m, n, k, k, k, true, false, c.get()));
  const std::vector<float> got = c.Host();
  for (int i = 0; i < m; ++i) {
    if (std::isfinite(numbers[i])) {
      CHECK_TRUE(std::fabs(got[i * n] - numbers[i]) <= 2e-7 * std::fabs(numbers[i]) + 1e-38);
    } else {
      CHECK_TRUE(!std::isfinite(got[i * n]));
    }
  }
}

}  // namespace
}  // namespace largeout
