// What ops and tests call on GPUs: the launchers of full_softmax_cuda.h behind the methods of
// full_softmax_cpu.h, which says what they do. Each waits for the stream once, for its verdict on the
// targets. With the call's `late` nothing waits: bad targets are taken for none, *bad of the terms is what an
// earlier call has found, in place of this one, and the gradient leaves it to them.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_GPU_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_GPU_H_

#include <type_traits>

#include "full_softmax/cuda/full_softmax_cuda.h"

namespace largeout {

class FullSoftmaxGpu {
 public:
  using Call = GpuCall;
  // Gradients are computed when they are asked for.
  static constexpr bool kGivesExpected = false;
  explicit FullSoftmaxGpu(const Call& call)
      : stream_(call.stream), scratch_(call.scratch), late_(call.late) {}

  template <typename T, typename H, typename Id>
  int Terms(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch, const SoftmaxTerms& terms,
            BadTarget* bad) {
    LateFinding found;
    if (late_ != nullptr && late_->Take(&found)) {
      *bad = {found.position, found.value};
      return 0;
    }
    SoftmaxBatch<H, int32_t> checked;
    LARGEOUT_RETURN_IF_ERROR(Check(batch, table.classes, &checked, bad));
    return bad->found() ? 0 : FullSoftmaxTermsCuda(table, checked, terms, scratch_, stream_);
  }

  template <typename T, typename H, typename Id>
  int Gradient(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch, const float* lse,
               const SoftmaxUpstream& upstream, const SoftmaxBatchGradients<H, T>& out, BadTarget* bad) {
    SoftmaxBatch<H, int32_t> checked;
    *bad = {};
    LARGEOUT_RETURN_IF_ERROR(Check(batch, table.classes, &checked, late_ == nullptr ? bad : nullptr));
    return bad->found() ? 0 : FullSoftmaxGradCuda(table, checked, lse, upstream, out, scratch_, stream_);
  }

 private:
  template <typename H, typename Id>
  int Check(const SoftmaxBatch<H, Id>& batch, int64_t classes, SoftmaxBatch<H, int32_t>* checked,
            BadTarget* bad) {
    int32_t* copy = nullptr;
    *checked = {batch.hidden, nullptr, batch.count, batch.skip_target};
    bool as_they_are = false;
    if constexpr (std::is_same<Id, int32_t>::value) {
      as_they_are = late_ == nullptr;  // bad ones end the call
      checked->targets = batch.targets;
    }
    if (!as_they_are) {
      copy = scratch_->Take<int32_t>(batch.count);
      if (copy == nullptr) return kNoMemory;
      checked->targets = copy;
    }
    return SoftmaxTargetsCuda(batch.targets, batch.count, classes, copy, scratch_, stream_, bad, late_);
  }

  const GpuStream stream_;
  Scratch* const scratch_;
  LateReport* const late_;
};

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_GPU_H_
