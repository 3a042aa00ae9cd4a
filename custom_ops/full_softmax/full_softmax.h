// A softmax over all classes, in chunks: nothing has the size [tokens, classes].
//
// With logits z[t, c] = hidden[t] . rows[c] + bias[c], three numbers per token are all that a loss needs:
//   lse[t]  the logsumexp of z[t, :]
//   ce[t]   lse[t] - z[t, target[t]], the cross-entropy; 0 for a token without a target (-1)
//   sum[t]  the sum of z[t, :] (label smoothing)
// Their gradient, given that of each, is that of a GEMM: with p = exp(z - lse)
//   d z[t, c] = (d_lse[t] + d_ce[t]) * p[t, c] - d_ce[t] * (c == target[t]) + d_sum[t]        (d_ce counts as
//   0 without a target)
// so classes can be spread over devices: each has these numbers for its own classes, and the caller joins
// them.
//
// With skip_target the class of the target is left out of the softmax instead (the "accidental hit" of a
// sampled softmax): its p is 0, and ce and sum are 0, whatever their gradients.
//
// Bounds of the speed, T tokens, C classes, D columns: 2 T C D flops for the three numbers and 4 T C D for
// the gradients; the gradient alone has to compute the logits again (6 T C D in all), and TermsAndGrad has
// not (6 T C D for both). Bytes: the rows once, and their gradient, per chunk of tokens.
//
// hidden is float32 here (the facades convert bfloat16). Where it was bfloat16, the products may be of
// bfloat16 too, with sums in float32: on GPUs, and on processors with AVX512-BF16, which take half of the
// time for them. Others take float32. T is the type of the rows, float or bfloat16. All memory belongs to the
// caller. The results do not depend on the number of threads. Functions return 0 or an error
// (common/scratch.h).
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_H_

#include <cmath>
#include <cstdint>

#include "common/bfloat16.h"
#include "common/scratch.h"

namespace largeout {

template <typename T>
struct SoftmaxRows {
  const T* rows;      // [classes, dim]
  const float* bias;  // [classes], or null
  int64_t classes, dim;
};

// The tokens of one call.
struct SoftmaxTokens {
  const float* hidden;     // [count, dim]
  const int32_t* targets;  // [count], a class, or -1
  int64_t count;
  bool skip_target;
  bool in_bfloat16 = false;  // rows and gradients of logits may be rounded to bfloat16 for the products
};

// [tokens] each.
struct SoftmaxTerms {
  float *lse, *ce, *sum;
};
struct SoftmaxUpstream {
  const float *lse, *ce, *sum;
};

// Every element is written, none is read before. Any may be null: not wanted.
template <typename T>
struct SoftmaxGradients {
  float* hidden;  // [tokens, dim]
  T* rows;        // [classes, dim]
  float* bias;    // [classes]
};

// The gradients that a loss is expected to ask for: those of weights[t] * (ce + z_loss * lse^2 + smoothing
// terms), where label smoothing by s over N classes is (1 - s) * ce + s * (lse - sum / N). With `positive`,
// the logit of the target that was left out: those of weights[t] * log(1 + exp(lse - positive[t])).
struct SoftmaxExpected {
  const float* weights;   // [tokens]
  const float* positive;  // [tokens], or null
  float smoothing;        // s
  float per_class;        // s / N; N counts the classes of all devices
  float z_loss;

  float OfLse(int64_t t, float lse) const {
    if (positive != nullptr) return weights[t] / (1.f + std::exp(positive[t] - lse));
    return weights[t] * (smoothing + 2.f * z_loss * lse);
  }
  float OfCe(int64_t t) const { return positive != nullptr ? 0.f : weights[t] * (1.f - smoothing); }
  float OfSum(int64_t t) const { return positive != nullptr ? 0.f : -weights[t] * per_class; }
};

// A target outside [-1, classes).
struct BadTarget {
  bool found() const { return position >= 0; }

  int64_t position = -1, value = 0;
};

template <typename Id>
BadTarget FirstBadTarget(const Id* targets, int64_t tokens, int64_t classes);

template <typename T>
int FullSoftmaxTerms(const SoftmaxRows<T>& table, const SoftmaxTokens& tokens, const SoftmaxTerms& terms,
                     const CpuCall& call);

// lse: [tokens], from FullSoftmaxTerms.
template <typename T>
int FullSoftmaxGrad(const SoftmaxRows<T>& table, const SoftmaxTokens& tokens, const float* lse,
                    const SoftmaxUpstream& upstream, const SoftmaxGradients<T>& gradients,
                    const CpuCall& call);

// Both at once, exponentials of logits being kept where those of enough tokens fit into scratch_bytes.
template <typename T>
int FullSoftmaxTermsAndGrad(const SoftmaxRows<T>& table, const SoftmaxTokens& tokens,
                            const SoftmaxExpected& expected, int64_t scratch_bytes, const SoftmaxTerms& terms,
                            const SoftmaxGradients<T>& gradients, const CpuCall& call);

// Whether `upstream` is what was expected, but for one factor, which goes to *factor (0 where all are 0).
bool IsExpected(const SoftmaxExpected& expected, const float* lse, const SoftmaxUpstream& upstream,
                int64_t tokens, float* factor);

// What the facades take: the tokens of a call as they come, hidden vectors of type H and targets of type Id,
template <typename H, typename Id>
struct SoftmaxBatch {
  const H* hidden;    // [count, dim]
  const Id* targets;  // [count]
  int64_t count;
  bool skip_target;
};

// and the gradients.
template <typename H, typename T>
struct SoftmaxBatchGradients {
  H* hidden;
  T* rows;
  float* bias;
};

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_H_
