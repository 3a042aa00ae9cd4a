// The hot loops of full_softmax, one table per concept and instruction-set level (see common/isa.h). Internal
// to the family.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNELS_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNELS_H_

#include <cstdint>

#include "common/bfloat16.h"
#include "common/isa.h"

namespace largeout {

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

LARGEOUT_DECLARE_LEVELS(SoftmaxExpKernels, kSoftmaxExp)

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNELS_H_
