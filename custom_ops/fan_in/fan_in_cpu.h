// What ops and tests call on CPUs: the kernels of fan_in.h and fan_in_rewire.h behind the methods that
// cuda/fan_in_gpu.h has for GPUs. Arrays lie on the device, but for labels (FanInPositives) and
// FanInRewiring's list of slots. Methods return 0 or an error (common/scratch.h).
#ifndef LARGEOUT_FAN_IN_FAN_IN_CPU_H_
#define LARGEOUT_FAN_IN_FAN_IN_CPU_H_

#include "common/huge_pages.h"
#include "common/scratch.h"
#include "fan_in/fan_in.h"
#include "fan_in/fan_in_rewire.h"

namespace largeout {

// One call of an op on its batch: LayOut, then one of the others. *bad: -1, or a row with an index out of
// range; the outputs mean nothing then.
class FanInCpu {
 public:
  using Call = CpuCall;
  FanInCpu(const Call& call, const FanInBatch& batch)
      : parallel_(call.parallel), scratch_(call.scratch), batch_(batch) {}

  // X: float or bfloat16.
  template <typename X>
  int LayOut(const X* inputs) {
    blocks_ = scratch_->Take<float>(batch_.floats());
    if (blocks_ == nullptr) return kNoMemory;
    FanInLayOut(batch_, inputs, blocks_, parallel_);
    return 0;
  }

  template <typename T, typename Id>
  int Logits(const FanInLayer<T, Id>& layer, float* logits, int64_t* bad) {
    AdviseHugePages(logits, batch_.size * layer.classes * sizeof(float));
    *bad = FanInLogits(layer, batch_, blocks_, logits, parallel_);
    return 0;
  }

  template <typename T, typename Id, typename Out>
  int TopK(const FanInLayer<T, Id>& layer, int64_t k, float* scores, Out* rows, int64_t* bad) {
    *bad = FanInTopK(layer, batch_, blocks_, k, scores, rows, parallel_);
    return 0;
  }

  template <typename T, typename Id>
  int LossForward(const FanInLayer<T, Id>& layer, FanInLoss loss, const FanInPositives& positives,
                  const FanInLossOutputs& out, int64_t* bad) {
    *bad = FanInLossForward(layer, batch_, blocks_, loss, positives, out, parallel_);
    return 0;
  }

  // input_gradient: LayBack follows, which says what it is.
  template <typename T, typename Id>
  int Backward(const FanInLayer<T, Id>& layer, const FanInGradients& gradients, const FanInStep<T>& step,
               bool input_gradient, int64_t* bad) {
    sums_ = scratch_->Take<float>(FanInBackwardScratch(layer.classes, layer.fan_in, batch_, input_gradient));
    if (sums_ == nullptr) return kNoMemory;
    *bad = FanInBackward(layer, batch_, blocks_, gradients, step, input_gradient ? sums_ : nullptr, sums_,
                         parallel_);
    return 0;
  }

  template <typename X>
  int LayBack(X* d_inputs) {
    FanInLayBack(batch_, sums_, d_inputs, parallel_);
    return 0;
  }

  template <typename T, typename Id>
  int CandidateGradient(const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                        const int32_t* candidates, int64_t first, int64_t rows, int64_t count,
                        float* d_weights, int64_t* bad, int64_t* bad_candidate) {
    *bad = FanInCandidateGradient(layer, batch_, blocks_, gradients, candidates, first, rows, count,
                                  d_weights, bad_candidate, parallel_);
    return 0;
  }

 private:
  Parallel* const parallel_;
  Scratch* const scratch_;
  const FanInBatch batch_;
  float *blocks_ = nullptr, *sums_ = nullptr;
};

// Connections, pruning and regrowth: fan_in_rewire.h says what the methods do.
class FanInRewireCpu {
 public:
  using Call = CpuCall;
  explicit FanInRewireCpu(const Call& call) : parallel_(call.parallel) {}

  template <typename Id>
  int Connections(int64_t rows, int64_t fan_in, int64_t inputs, uint64_t key, int64_t first_class,
                  Id* indices) {
    FanInConnections(rows, fan_in, inputs, key, first_class, indices, parallel_);
    return 0;
  }

  template <typename Id>
  int Candidates(const Id* indices, int64_t fan_in, int64_t inputs, uint64_t key, int64_t first_class,
                 int64_t first_row, int64_t rows, int64_t count, int32_t* candidates, int64_t* bad) {
    *bad = FanInCandidates(indices, fan_in, inputs, key, first_class, first_row, rows, count, candidates,
                           parallel_);
    return 0;
  }

  template <typename T>
  int KeyCounts(const T* weights, int64_t rows, int64_t fan_in, uint64_t key, int64_t first_class,
                uint64_t prefix, int digit, int64_t* counts) {
    FanInKeyCounts(weights, rows, fan_in, key, first_class, prefix, digit, counts, parallel_);
    return 0;
  }

  template <typename T, typename Id>
  int Rewire(const FanInRewiring<T, Id>& r, int64_t* changes, int64_t* bad, bool* bad_candidate) {
    *bad = FanInRewire(r, changes, bad_candidate, parallel_);
    return 0;
  }

  template <typename Id>
  int Degrees(const Id* indices, int64_t rows, int64_t fan_in, int64_t inputs, int64_t* degrees,
              int64_t* bad) {
    *bad = FanInDegrees(indices, rows, fan_in, inputs, degrees, parallel_);
    return 0;
  }

 private:
  Parallel* const parallel_;
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_CPU_H_
