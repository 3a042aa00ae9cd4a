// The hot loops of full_softmax, one table per concept and instruction-set level (see common/isa.h). Internal
// to the family.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNELS_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNELS_H_

#include <cstdint>

#include "common/bfloat16.h"
#include "common/isa.h"

namespace largeout {

// full_softmax_gemm_simd.cc. A *panel* is `width` columns of a matrix, packed: [depth][width] floats, aligned
// to 64 bytes, with zeros beyond the matrix.
struct SoftmaxGemmKernels {
  int64_t width;  // columns of a panel, 8 .. 32
  // Panels of the matrix x [depth, n] (row stride ld): panel j has the columns j * width ...
  void (*pack)(const float* x, int64_t ld, int64_t depth, int64_t n, float* panels);
  void (*pack_bfloat16)(const bfloat16* x, int64_t ld, int64_t depth, int64_t n, float* panels);
  // Panels of the transposed matrix: x is [n, depth].
  void (*pack_transposed)(const float* x, int64_t ld, int64_t n, int64_t depth, float* panels);
  void (*pack_transposed_bfloat16)(const bfloat16* x, int64_t ld, int64_t n, int64_t depth, float* panels);
  // c[i * ld + j] (+)= sum over k of a[i * a_row + k * a_k] * B[k, j], for i < m, j < n. `add`: to what c
  // holds; otherwise c is not read.
  void (*multiply)(int64_t m, int64_t n, int64_t depth, const float* a, int64_t a_row, int64_t a_k,
                   const float* panels, float* c, int64_t ld, bool add);
};

// full_softmax_exp_simd.cc. One block of logits [m, n], row stride ld; target[i] - first is the column of the
// target, if the block has it. Sums are in a fixed order.
struct SoftmaxExpKernels {
  // Adds bias (may be null); high[i], total[i] become the maximum and the sum of exp(logit - high[i]); sum[i]
  // the sum of the logits; picked[i] the logit of the target, where the block has it. With skip the target's
  // logit becomes -inf.
  void (*terms)(float* logits, int64_t ld, int64_t m, int64_t n, const float* bias, const int32_t* target,
                int32_t first, bool skip, float* high, float* total, float* sum, float* picked);
  // In place: logit -> of_p[i] * exp(logit - lse[i]) + of_all[i], and + of_target[i] at the target. With skip
  // 0 at the target. bias (may be null) is added to the logits first.
  void (*gradient)(float* logits, int64_t ld, int64_t m, int64_t n, const float* bias, const int32_t* target,
                   int32_t first, bool skip, const float* lse, const float* of_p, const float* of_target,
                   const float* of_all);
};

LARGEOUT_DECLARE_LEVELS(SoftmaxGemmKernels, kSoftmaxGemm)
LARGEOUT_DECLARE_LEVELS(SoftmaxExpKernels, kSoftmaxExp)

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNELS_H_
