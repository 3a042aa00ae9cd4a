// The parts that both implementations of the gradients share (full_softmax_grad.cu, full_softmax_library.cu):
// chunks of logits, the gradient of one logit, and the sums of bias gradients.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_GRADIENTS_CUH_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_GRADIENTS_CUH_

#include <algorithm>

#include "common/cuda/vectors.cuh"
#include "full_softmax/cuda/full_softmax_tuning.cuh"
#include "full_softmax/full_softmax.h"

namespace largeout {

// The size of the fewest even pieces of n that have at most `most` elements: a multiple of `unit`, as `most` is.
inline int64_t EvenPiece(int64_t n, int64_t most, int64_t unit) {
  const int64_t pieces = std::max<int64_t>(1, CeilDiv(n, most));
  return std::max<int64_t>(1, CeilDiv(CeilDiv(n, pieces), unit)) * unit;
}

// Threads of kernels that take an element each.
constexpr int kElementThreads = 256;
inline unsigned ElementBlocks(int64_t n) { return static_cast<unsigned>(CeilDiv(n, kElementThreads)); }

// One chunk: tokens from `token` on, classes from `first` on. `gradient` [tokens, stride] are those of its
// logits, of the type of the hidden vectors.
template <typename H>
struct SoftmaxChunk {
  int64_t token, count, first, width, stride;
  H* gradient;
  float* column_sums;  // [tiles of tokens, stride]
};

// The numbers of a token, besides its logits, that their gradients depend on.
struct TokenGradient {
  float lse, of_p, of_target, of_all;
  int target;
  bool skip_target;

  __device__ __forceinline__ float Of(float logit, bool is_target) const {
    // A logit above the sum of all is one by rounding alone. Without any class (all -inf) every p is 0.
    const float x = logit - lse;
    const float p = lse == -INFINITY ? 0.f : expf(x > 0.f ? 0.f : x);
    const float gradient = fmaf(of_p, p, of_all);
    if (!is_target) return gradient;
    return skip_target ? 0.f : gradient - of_target;
  }
};

// Of all tokens.
struct TokenGradients {
  const int32_t* targets;
  const float* lse;
  SoftmaxUpstream upstream;
  bool skip_target;

  __device__ __forceinline__ TokenGradient At(int64_t t) const {
    const int target = targets[t];
    const float of_target = target >= 0 && !skip_target ? upstream.ce[t] : 0.f;
    return {lse[t], upstream.lse[t] + of_target, of_target, skip_target ? 0.f : upstream.sum[t], target,
            skip_target};
  }
};

// The gradient of the biases from the sums of tiles of `rows` tokens; added to where other tokens came before.
template <typename H>
__global__ void JoinColumns(SoftmaxChunk<H> chunk, int64_t rows, bool add, float* d_bias) {
  const int64_t c = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (c >= chunk.width) return;
  float sum = add ? d_bias[c] : 0.f;
  for (int64_t tile = 0; tile < CeilDiv(chunk.count, rows); ++tile)
    sum += chunk.column_sums[tile * chunk.stride + c];
  d_bias[c] = sum;
}

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_GRADIENTS_CUH_
