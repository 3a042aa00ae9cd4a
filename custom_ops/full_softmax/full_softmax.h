// A softmax over all classes, in chunks: nothing has the size [tokens, classes].
//
// With logits z[t, c] = hidden[t] . rows[c] + bias[c], three numbers per token are all that a loss needs:
//   lse[t]  the logsumexp of z[t, :]
//   ce[t]   lse[t] - z[t, target[t]], the cross-entropy; 0 for a token without a target (-1)
//   sum[t]  the sum of z[t, :] (label smoothing)
// Their gradient, given that of each, is that of a GEMM: with p = exp(z - lse)
//   d z[t, c] = (d_lse[t] + d_ce[t]) * p[t, c] - d_ce[t] * (c == target[t]) + d_sum[t]
// (d_ce counts as 0 without a target). So classes can be spread over devices: each has these numbers for its
// own classes, and the caller joins them.
//
// With skip_target the class of the target is left out of the softmax instead (the "accidental hit" of a
// sampled softmax): its p is 0, and ce and sum are 0, whatever their gradients.
//
// Bounds of the speed, T tokens, C classes, D columns: 2 T C D flops for the three numbers and 4 T C D for
// the gradients; the gradient alone has to compute the logits again (6 T C D in all), and TermsAndGradient
// has not (6 T C D for both). Bytes: the rows once, and their gradient, per chunk of tokens.
//
// H is the type of hidden vectors, T that of the rows: float or bfloat16. Where hidden vectors are bfloat16,
// the products may be of bfloat16 too, with sums in float32: on GPUs, and on processors with AVX512-BF16,
// which take half of the time for them. Others take float32. The results do not depend on the number of
// threads.
//
// A GPU gives the same numbers, and the same bits on every run: no float atomics, sums have an order that
// depends on the sizes alone. Less than 2^31 tokens, classes and columns. Rows are copied to shared memory 16
// bytes at a time, and without waiting, where they are aligned to them. Products are those of tensor cores
// (common/cuda/gemm/): three of TF32 for float32, which lose 2^-22 of a product, or one, which loses 2^-11,
// where the call allows it (GpuCall::tf32); of bfloat16 where rows or hidden vectors are. Beside rows of
// bfloat16 hidden vectors of float32 keep 16 bits. Beside hidden vectors of bfloat16 all factors are rounded
// to it: rows, and gradients of logits.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

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
template <typename H, typename Id>
struct SoftmaxBatch {
  const H* hidden;    // [count, dim]
  const Id* targets;  // [count], a class, or -1
  int64_t count;
  bool skip_target;
};

// [tokens] each.
struct SoftmaxTerms {
  float *lse, *ce, *sum;
};
struct SoftmaxUpstream {
  const float *lse, *ce, *sum;
};

// Every element is written, none is read before. Any may be null: not wanted.
template <typename H, typename T>
struct SoftmaxBatchGradients {
  H* hidden;    // [tokens, dim]
  T* rows;      // [classes, dim]
  float* bias;  // [classes]
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

// Whether `upstream` is what was expected, but for one factor, which goes to *factor (0 where all are 0).
bool IsExpected(const SoftmaxExpected& expected, const float* lse, const SoftmaxUpstream& upstream,
                int64_t tokens, float* factor);

// C: CpuCall (full_softmax.cc) or GpuCall (cuda/full_softmax*.cu). Arrays are in the memory of the device.
// Methods return 0 or an error (common/scratch.h). Each looks at the targets first: *bad is the first outside
// [-1, classes), and nothing else is then done. A GPU waits for the stream once, to learn it. With the call's
// `late` it does not wait: bad targets are ignored, *bad of Terms is what an earlier call has found, in place
// of this one, and *bad of Gradient is never found.
template <typename C>
class FullSoftmax {
 public:
  using Call = C;
  // Whether TermsAndGradient exists. Others compute gradients when they are asked for.
  static constexpr bool kGivesExpected = std::is_same_v<C, CpuCall>;
  explicit FullSoftmax(const Call& call) : call_(call) {}

  // Scratch memory of a GPU: up to 64 MB, or 12 bytes for each 128 tokens and 8192 classes. With products of
  // cuBLASLt (GpuCall::library): as cuda/full_softmax_library.cuh says, here and below.
  template <typename T, typename H, typename Id>
  int Terms(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch, const SoftmaxTerms& terms,
            BadTarget* bad);

  // lse: [tokens], from Terms. Scratch memory of a GPU: up to 128 MB (64 with hidden vectors of bfloat16) for
  // gradients of logits, and the gradient of the hidden vectors in float32: several parts of it, together up
  // to 32 MB, where there are few tokens, else one, and for float32 vectors none. Rows of bfloat16: also a
  // float32 copy of some of their gradient, where there are more than 8192 tokens.
  template <typename T, typename H, typename Id>
  int Gradient(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch, const float* lse,
               const SoftmaxUpstream& upstream, const SoftmaxBatchGradients<H, T>& out, BadTarget* bad);

  // CPU only. Both at once, exponentials of logits being kept where those of enough tokens fit into
  // scratch_bytes.
  template <typename T, typename H, typename Id>
  int TermsAndGradient(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch,
                       const SoftmaxExpected& expected, int64_t scratch_bytes, const SoftmaxTerms& terms,
                       const SoftmaxBatchGradients<H, T>& out, BadTarget* bad);

  // CPU only. out[i] = factor * in[i], i < n; out may be in.
  template <typename X>
  void Scale(const X* in, int64_t n, float factor, X* out);

 private:
  const Call call_;
};

using FullSoftmaxCpu = FullSoftmax<CpuCall>;
using FullSoftmaxGpu = FullSoftmax<GpuCall>;

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_H_
