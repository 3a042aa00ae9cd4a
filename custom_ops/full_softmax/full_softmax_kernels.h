// The hot loops of full_softmax, one table per concept and instruction-set level (see common/isa.h). Internal
// to the family.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNELS_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNELS_H_

#include <cstdint>

#include "common/bfloat16.h"
#include "common/isa.h"

namespace largeout {

// full_softmax_gemm_simd.cc in float32, full_softmax_gemm_bfloat16_simd.cc in bfloat16. Depth comes in
// *words* of 32 bits: one float, or two neighbours in bfloat16. A *panel* is `width` columns of a matrix,
// packed: [words of the depth][width], aligned to 64 bytes, with zeros beyond the matrix.
struct SoftmaxGemmKernels {
  int64_t width;     // columns of a panel, 8 .. 32
  int64_t per_word;  // 1 or 2; 0: this level has no such products, and everything below is null
  int64_t Words(int64_t depth) const { return (depth + per_word - 1) / per_word; }
  // Panels of the matrix x [depth, n] (row stride ld): panel j has the columns j * width ...
  void (*pack)(const float* x, int64_t ld, int64_t depth, int64_t n, float* panels);
  void (*pack_bfloat16)(const bfloat16* x, int64_t ld, int64_t depth, int64_t n, float* panels);
  // Panels of the transposed matrix: x is [n, depth].
  void (*pack_transposed)(const float* x, int64_t ld, int64_t n, int64_t depth, float* panels);
  void (*pack_transposed_bfloat16)(const bfloat16* x, int64_t ld, int64_t n, int64_t depth, float* panels);
  // The left matrix x [m, depth] as words [m, words of the depth]; and as words [words of the depth, m] where
  // x is [depth, m] (null where a word is a float: x itself is that).
  void (*left)(const float* x, int64_t ld, int64_t m, int64_t depth, float* words, int64_t words_ld);
  void (*left_transposed)(const float* x, int64_t ld, int64_t depth, int64_t m, float* words,
                          int64_t words_ld);
  // c[i * ld + j] (+)= addend[j] + sum over k of a[i * a_row + k * a_k] * B[k, j], for i < m, j < n, k <
  // depth, which counts words. `addend` may be null: zeros. `add`: to what c holds; otherwise c is not read.
  void (*multiply)(int64_t m, int64_t n, int64_t depth, const float* a, int64_t a_row, int64_t a_k,
                   const float* panels, const float* addend, float* c, int64_t ld, bool add);
};

// full_softmax_exp_simd.cc. One block of logits [m, n], row stride ld; target[i] - first is the column of the
// target, if the block has it. Sums are in a fixed order.
struct SoftmaxExpKernels {
  // high[i], total[i] become the maximum and the sum of exp(logit - high[i]); sum[i] the sum of the logits;
  // picked[i] the logit of the target, where the block has it. With skip the target's logit becomes -inf.
  // keep (may be null; [m, n], row stride ld, aligned to 64 bytes) gets the exponentials.
  void (*terms)(float* logits, int64_t ld, int64_t m, int64_t n, const int32_t* target, int32_t first,
                bool skip, float* keep, float* high, float* total, float* sum, float* picked);
  // In place: logit -> of_p[i] * exp(logit - lse[i]) + of_all[i], and + of_target[i] at the target. With skip
  // 0 at the target.
  void (*gradient)(float* logits, int64_t ld, int64_t m, int64_t n, const int32_t* target, int32_t first,
                   bool skip, const float* lse, const float* of_p, const float* of_target,
                   const float* of_all);
  // The same from the exponentials that terms kept, to out.
  void (*gradient_of_exps)(const float* exps, float* out, int64_t ld, int64_t m, int64_t n,
                           const int32_t* target, int32_t first, bool skip, const float* high,
                           const float* lse, const float* of_p, const float* of_target, const float* of_all);
  // sums[j] += sum over i of x[i * ld + j].
  void (*add_columns)(const float* x, int64_t ld, int64_t m, int64_t n, float* sums);
};

LARGEOUT_DECLARE_LEVELS(SoftmaxGemmKernels, kSoftmaxGemm)
LARGEOUT_DECLARE_LEVELS(SoftmaxGemmKernels, kSoftmaxGemmBfloat16)
LARGEOUT_DECLARE_LEVELS(SoftmaxExpKernels, kSoftmaxExp)

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNELS_H_
