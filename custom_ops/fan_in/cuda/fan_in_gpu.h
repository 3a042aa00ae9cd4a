// What ops and tests call on GPUs: the launchers of fan_in_cuda.h and fan_in_rewire_cuda.h behind the methods
// of fan_in_cpu.h. Labels are sorted on the host, where they lie, and copied.
//
// With the call's `late` training waits for nothing: `bad` of logits and losses is what an earlier call has
// found, in place of this one, and the backward pass leaves it to them.
#ifndef LARGEOUT_FAN_IN_FAN_IN_GPU_H_
#define LARGEOUT_FAN_IN_FAN_IN_GPU_H_

#include "fan_in/cuda/fan_in_cuda.h"
#include "fan_in/cuda/fan_in_rewire_cuda.h"

namespace largeout {

class FanInGpu {
 public:
  using Call = GpuCall;
  FanInGpu(const Call& call, const FanInBatch& batch)
      : stream_(call.stream), scratch_(call.scratch), late_(call.late), batch_(batch) {}

  template <typename X>
  int LayOut(const X* inputs) {
    blocks_ = scratch_->Take<float>(batch_.floats());
    return blocks_ == nullptr ? kNoMemory : FanInLayOutCuda(batch_, inputs, blocks_, stream_);
  }

  template <typename T, typename Id>
  int Logits(const FanInLayer<T, Id>& layer, float* logits, int64_t* bad) {
    if (FoundBefore(bad)) return 0;
    void* workspace = scratch_->Allocate(kFanInLogitsWorkspaceCuda);
    if (workspace == nullptr) return kNoMemory;
    return FanInLogitsCuda(layer, batch_, blocks_, logits, workspace, stream_, bad, late_);
  }

  template <typename T, typename Id, typename Out>
  int TopK(const FanInLayer<T, Id>& layer, int64_t k, float* scores, Out* rows, int64_t* bad) {
    void* workspace = scratch_->Allocate(FanInTopKWorkspaceCuda(layer.classes, batch_, k));
    if (workspace == nullptr) return kNoMemory;
    return FanInTopKCuda(layer, batch_, blocks_, k, scores, rows, workspace, stream_, bad);
  }

  template <typename T, typename Id>
  int LossForward(const FanInLayer<T, Id>& layer, FanInLoss loss, const FanInPositives& positives,
                  const FanInLossOutputs& out, int64_t* bad) {
    if (FoundBefore(bad)) return 0;
    FanInPositivesCuda on_gpu;
    LARGEOUT_RETURN_IF_ERROR(ToGpu(positives, &on_gpu));
    void* workspace = scratch_->Allocate(FanInLossWorkspaceCuda(layer.classes, batch_));
    if (workspace == nullptr) return kNoMemory;
    return FanInLossForwardCuda(layer, batch_, blocks_, loss, on_gpu, out, workspace, stream_, bad, late_);
  }

  template <typename T, typename Id>
  int Backward(const FanInLayer<T, Id>& layer, const FanInGradients& gradients, const FanInStep<T>& step,
               bool input_gradient, int64_t* bad) {
    *bad = -1;
    FanInGradientsCuda on_gpu;
    LARGEOUT_RETURN_IF_ERROR(ToGpu(gradients, &on_gpu));
    void* workspace =
        scratch_->Allocate(FanInBackwardWorkspaceCuda(layer.classes, layer.fan_in, batch_, input_gradient));
    if (workspace == nullptr) return kNoMemory;
    return FanInBackwardCuda(layer, batch_, blocks_, on_gpu, step, input_gradient ? &d_blocks_ : nullptr,
                             workspace, stream_, late_ == nullptr ? bad : nullptr);
  }

  template <typename X>
  int LayBack(X* d_inputs) {
    return FanInLayBackCuda(batch_, d_blocks_, d_inputs, stream_);
  }

  template <typename T, typename Id>
  int CandidateGradient(const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                        const int32_t* candidates, int64_t first, int64_t rows, int64_t count,
                        float* d_weights, int64_t* bad, int64_t* bad_candidate) {
    FanInGradientsCuda on_gpu;
    LARGEOUT_RETURN_IF_ERROR(ToGpu(gradients, &on_gpu));
    void* workspace = scratch_->Allocate(FanInBackwardWorkspaceCuda(rows, layer.fan_in, batch_, false));
    if (workspace == nullptr) return kNoMemory;
    return FanInCandidateGradientCuda(layer, batch_, blocks_, on_gpu, candidates, first, rows, count,
                                      d_weights, workspace, stream_, bad, bad_candidate);
  }

 private:
  bool FoundBefore(int64_t* bad) {
    LateFinding found;
    if (late_ == nullptr || !late_->Take(&found)) return false;
    *bad = found.position;
    return true;
  }

  template <typename X>
  int ToGpu(const std::vector<X>& from, const X** to) {
    X* copy = scratch_->Take<X>(static_cast<int64_t>(from.size()));
    *to = copy;
    return copy == nullptr ? kNoMemory
                           : CopyToDeviceCuda(from.data(), from.size() * sizeof(X), copy, stream_);
  }

  int ToGpu(const FanInPositives& from, FanInPositivesCuda* to) {
    LARGEOUT_RETURN_IF_ERROR(ToGpu(from.sorted, &to->sorted));
    return ToGpu(from.block_start, &to->block_start);
  }

  int ToGpu(const FanInGradients& from, FanInGradientsCuda* to) {
    to->logits = from.logits, to->loss = from.loss, to->grad_loss = from.grad_loss;
    to->lse = from.lse, to->mass = from.mass, to->active = from.active;
    return from.positives == nullptr ? 0 : ToGpu(*from.positives, &to->positives);
  }

  const GpuStream stream_;
  Scratch* const scratch_;
  LateReport* const late_;
  const FanInBatch batch_;
  float *blocks_ = nullptr, *d_blocks_ = nullptr;
};

class FanInRewireGpu {
 public:
  using Call = GpuCall;
  explicit FanInRewireGpu(const Call& call) : stream_(call.stream), scratch_(call.scratch) {}

  template <typename Id>
  int Connections(int64_t rows, int64_t fan_in, int64_t inputs, uint64_t key, int64_t first_class,
                  Id* indices) {
    void* workspace = scratch_->Allocate(FanInDrawWorkspaceCuda(rows, 0, fan_in, inputs));
    if (workspace == nullptr) return kNoMemory;
    return FanInConnectionsCuda(rows, fan_in, inputs, key, first_class, indices, workspace, stream_);
  }

  template <typename Id>
  int Candidates(const Id* indices, int64_t fan_in, int64_t inputs, uint64_t key, int64_t first_class,
                 int64_t first_row, int64_t rows, int64_t count, int32_t* candidates, int64_t* bad) {
    void* workspace = scratch_->Allocate(FanInDrawWorkspaceCuda(rows, fan_in, count, inputs));
    if (workspace == nullptr) return kNoMemory;
    return FanInCandidatesCuda(indices, fan_in, inputs, key, first_class, first_row, rows, count, candidates,
                               workspace, stream_, bad);
  }

  template <typename T>
  int KeyCounts(const T* weights, int64_t rows, int64_t fan_in, uint64_t key, int64_t first_class,
                uint64_t prefix, int digit, int64_t* counts) {
    return FanInKeyCountsCuda(weights, rows, fan_in, key, first_class, prefix, digit, counts, stream_);
  }

  template <typename T, typename Id>
  int Rewire(const FanInRewiring<T, Id>& r, int64_t* changes, int64_t* bad, bool* bad_candidate) {
    void* workspace =
        scratch_->Allocate(FanInDrawWorkspaceCuda(r.rows, r.fan_in, 2 * r.fan_in, r.inputs, r.num_slots));
    if (workspace == nullptr) return kNoMemory;
    return FanInRewireCuda(r, changes, workspace, stream_, bad, bad_candidate);
  }

  template <typename Id>
  int Degrees(const Id* indices, int64_t rows, int64_t fan_in, int64_t inputs, int64_t* degrees,
              int64_t* bad) {
    void* workspace = scratch_->Allocate(kFanInDegreesWorkspaceCuda);
    if (workspace == nullptr) return kNoMemory;
    return FanInDegreesCuda(indices, rows, fan_in, inputs, degrees, workspace, stream_, bad);
  }

 private:
  const GpuStream stream_;
  Scratch* const scratch_;
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_GPU_H_
