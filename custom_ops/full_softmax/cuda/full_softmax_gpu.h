// What ops and tests call on GPUs: the launchers of full_softmax_cuda.h behind the methods of
// full_softmax_cpu.h, which says what they do. Each waits for the stream once, for its verdict on the
// targets.
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
  explicit FullSoftmaxGpu(const Call& call) : stream_(call.stream), scratch_(call.scratch) {}

  template <typename T, typename H, typename Id>
  int Terms(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch, const SoftmaxTerms& terms,
            int64_t* bad) {
    SoftmaxBatch<H, int32_t> checked;
    LARGEOUT_RETURN_IF_ERROR(Check(batch, table.classes, &checked, bad));
    return *bad >= 0 ? 0 : FullSoftmaxTermsCuda(table, checked, terms, scratch_, stream_);
  }

  template <typename T, typename H, typename Id>
  int Gradient(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch, const float* lse,
               const SoftmaxUpstream& upstream, const SoftmaxBatchGradients<H, T>& out, int64_t* bad) {
    SoftmaxBatch<H, int32_t> checked;
    LARGEOUT_RETURN_IF_ERROR(Check(batch, table.classes, &checked, bad));
    return *bad >= 0 ? 0 : FullSoftmaxGradCuda(table, checked, lse, upstream, out, scratch_, stream_);
  }

 private:
  template <typename H, typename Id>
  int Check(const SoftmaxBatch<H, Id>& batch, int64_t classes, SoftmaxBatch<H, int32_t>* checked,
            int64_t* bad) {
    int32_t* copy = nullptr;
    *checked = {batch.hidden, nullptr, batch.count, batch.skip_target};
    if constexpr (std::is_same<Id, int32_t>::value) {
      checked->targets = batch.targets;
    } else {
      copy = scratch_->Take<int32_t>(batch.count);
      if (copy == nullptr) return kNoMemory;
      checked->targets = copy;
    }
    return SoftmaxTargetsCuda(batch.targets, batch.count, classes, copy, scratch_, stream_, bad);
  }

  const GpuStream stream_;
  Scratch* const scratch_;
};

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_GPU_H_
