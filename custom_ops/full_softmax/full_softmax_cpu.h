// What ops and tests call on CPUs: the functions of full_softmax.h behind the methods that
// cuda/full_softmax_gpu.h has for GPUs.
//
// H is the type of hidden vectors, T that of the rows: float or bfloat16. Arrays lie on the device. Methods
// return 0 or an error (common/scratch.h). Every method looks at the targets first: *bad is the first
// outside [-1, classes), and nothing else is then done.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_CPU_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_CPU_H_

#include <type_traits>

#include "common/huge_pages.h"
#include "full_softmax/full_softmax.h"

namespace largeout {

class FullSoftmaxCpu {
 public:
  using Call = CpuCall;
  // Terms can leave the expected gradients too.
  static constexpr bool kGivesExpected = true;
  explicit FullSoftmaxCpu(const Call& call) : call_(call) {}

  template <typename T, typename H, typename Id>
  int Terms(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch, const SoftmaxTerms& terms,
            BadTarget* bad) {
    SoftmaxTokens tokens;
    LARGEOUT_RETURN_IF_ERROR(Tokens(table, batch, &tokens, bad));
    return bad->found() ? 0 : FullSoftmaxTerms(table, tokens, terms, call_);
  }

  template <typename T, typename H, typename Id>
  int Gradient(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch, const float* lse,
               const SoftmaxUpstream& upstream, const SoftmaxBatchGradients<H, T>& out, BadTarget* bad) {
    return WithGradients(table, batch, out, bad,
                         [&](const SoftmaxTokens& tokens, const SoftmaxGradients<T>& gradients) {
                           return FullSoftmaxGrad(table, tokens, lse, upstream, gradients, call_);
                         });
  }

  template <typename T, typename H, typename Id>
  int TermsAndGradient(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch,
                       const SoftmaxExpected& expected, int64_t scratch_bytes, const SoftmaxTerms& terms,
                       const SoftmaxBatchGradients<H, T>& out, BadTarget* bad) {
    return WithGradients(
        table, batch, out, bad, [&](const SoftmaxTokens& tokens, const SoftmaxGradients<T>& gradients) {
          return FullSoftmaxTermsAndGrad(table, tokens, expected, scratch_bytes, terms, gradients, call_);
        });
  }

  // out[i] = factor * in[i], i < n; out may be in.
  template <typename X>
  void Scale(const X* in, int64_t n, float factor, X* out) {
    call_.parallel->For(n, 1, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) FromFloat(ToFloat(in[i]) * factor, out + i);
    });
  }

 private:
  template <typename T, typename H, typename Id>
  int Tokens(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch, SoftmaxTokens* tokens,
             BadTarget* bad) {
    *bad = FirstBadTarget(batch.targets, batch.count, table.classes);
    if (bad->found()) return 0;
    tokens->count = batch.count, tokens->skip_target = batch.skip_target;
    tokens->in_bfloat16 = std::is_same<H, bfloat16>::value;
    if constexpr (std::is_same<Id, int32_t>::value) {
      tokens->targets = batch.targets;
    } else {
      int32_t* targets = call_.scratch->template Take<int32_t>(batch.count);
      if (targets == nullptr) return kNoMemory;
      for (int64_t t = 0; t < batch.count; ++t) targets[t] = static_cast<int32_t>(batch.targets[t]);
      tokens->targets = targets;
    }
    if constexpr (std::is_same<H, float>::value) {
      tokens->hidden = batch.hidden;
    } else {
      const int64_t n = batch.count * table.dim;
      float* floats = call_.scratch->template Take<float>(n);
      if (floats == nullptr) return kNoMemory;
      call_.parallel->For(n, 1, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) floats[i] = ToFloat(batch.hidden[i]);
      });
      tokens->hidden = floats;
    }
    return 0;
  }

  template <typename T, typename H, typename Id, typename Body>
  int WithGradients(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch,
                    const SoftmaxBatchGradients<H, T>& out, BadTarget* bad, const Body& body) {
    SoftmaxTokens tokens;
    LARGEOUT_RETURN_IF_ERROR(Tokens(table, batch, &tokens, bad));
    if (bad->found()) return 0;
    if (out.rows != nullptr) AdviseHugePages(out.rows, table.classes * table.dim * sizeof(T));
    if constexpr (std::is_same<H, float>::value) {
      return body(tokens, {out.hidden, out.rows, out.bias});
    } else {
      const int64_t n = batch.count * table.dim;
      float* d_hidden = out.hidden == nullptr ? nullptr : call_.scratch->template Take<float>(n);
      if (out.hidden != nullptr && d_hidden == nullptr) return kNoMemory;
      LARGEOUT_RETURN_IF_ERROR(body(tokens, {d_hidden, out.rows, out.bias}));
      if (d_hidden == nullptr) return 0;
      call_.parallel->For(n, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) FromFloat(d_hidden[i], out.hidden + i);
      });
      return 0;
    }
  }

  const CpuCall call_;
};

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_CPU_H_
