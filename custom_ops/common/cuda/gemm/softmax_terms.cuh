// The logsumexp of rows of logits that come tile by tile and are not kept: the largest so far, and the sum of
// exp(logit - largest), of every row.
#ifndef LARGEOUT_COMMON_CUDA_GEMM_SOFTMAX_TERMS_CUH_
#define LARGEOUT_COMMON_CUDA_GEMM_SOFTMAX_TERMS_CUH_

#include "common/cuda/gemm/tile_shape.cuh"

namespace largeout {

// Of some logits. A NaN among them makes `total` NaN.
struct SoftmaxTotal {
  float high = -INFINITY, total = 0.f;

  // The number that is subtracted from exponents: without any logit but -inf the total is 0, not NaN.
  __device__ __forceinline__ float Shift() const { return high == -INFINITY ? 0.f : high; }
  __device__ __forceinline__ void Raise(float top) {
    const float before = high;
    high = fmaxf(high, top);
    total *= expf(before - Shift());
  }
};

// The running totals of a block's rows, [threads of a row, rows] in shared memory: in registers they
// would take those of the product. Each thread has its own; Join needs a barrier before.
template <class Shape>
struct TileTotals {
  static constexpr int kStride = Shape::kM + 1;  // neighbouring threads are in different banks
  static constexpr int kFloats = 2 * Shape::kAcross * kStride;
  float* shared;  // kFloats

  __device__ __forceinline__ float* High(int across, int row) const {
    return shared + across * kStride + row;
  }
  __device__ __forceinline__ SoftmaxTotal Get(const float* high) const {
    return {high[0], high[kFloats / 2]};
  }
  // Adds the thread's logits, -inf where there are none. first: of the block's tiles.
  __device__ __forceinline__ void Add(const float (&logits)[Shape::kTM][Shape::kTN], bool first) const {
#pragma unroll
    for (int i = 0; i < Shape::kTM; ++i) {
      float* mine = High(Shape::Across(), Shape::Row(i));
      SoftmaxTotal row;
      if (!first) row = Get(mine);
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < Shape::kTN; ++j) top = fmaxf(top, logits[i][j]);
      row.Raise(top);
#pragma unroll
      for (int j = 0; j < Shape::kTN; ++j) row.total += expf(logits[i][j] - row.Shift());
      mine[0] = row.high, mine[kFloats / 2] = row.total;
    }
  }
  // All of a row, in the order of its threads.
  __device__ __forceinline__ SoftmaxTotal Join(int row) const {
    SoftmaxTotal all;
    for (int n = 0; n < Shape::kAcross; ++n) all.high = fmaxf(all.high, *High(n, row));
    for (int n = 0; n < Shape::kAcross; ++n) {
      const SoftmaxTotal one = Get(High(n, row));
      all.total += one.total * expf(one.high - all.Shift());
    }
    return all;
  }
};

// The logsumexp of what several parts give, [parts] `stride` apart: *top and the logarithm of the rest, whose
// sum it is; -inf of nothing but -inf.
struct JoinedTotal {
  double top = 0.0, log_total = 0.0;
  bool none = false;
  __device__ float Lse() const { return none ? -INFINITY : static_cast<float>(top + log_total); }
  // lse - logit, exact where one logit stands far above the others.
  __device__ float Minus(float logit) const { return static_cast<float>((top - logit) + log_total); }
};
__device__ __forceinline__ JoinedTotal JoinTotals(const float* high, const float* total, int64_t parts,
                                                  int64_t stride) {
  float top = -INFINITY;
  for (int64_t i = 0; i < parts; ++i) top = fmaxf(top, high[i * stride]);
  const double shift = top == -INFINITY ? 0.0 : top;
  double sum = 0.0;
  for (int64_t i = 0; i < parts; ++i) sum += total[i * stride] * exp(high[i * stride] - shift);
  return {top, log(sum), sum == 0.0};
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_GEMM_SOFTMAX_TERMS_CUH_
