// What the CUDA tests of fan_in share: a problem of fan_in_testing.h on the GPU, and its forward and backward
// pass as a training step calls them.
#ifndef LARGEOUT_FAN_IN_FAN_IN_CUDA_TESTING_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_CUDA_TESTING_CUH_

#include "common/test/cuda_testing.cuh"
#include "fan_in/cuda/fan_in_cuda.h"
#include "fan_in/test/fan_in_testing.h"

namespace largeout {

// Labels sorted on the host, in device memory.
struct PositivesOnGpu {
  explicit PositivesOnGpu(const FanInPositives& host) : sorted(host.sorted), block_start(host.block_start) {}
  FanInPositivesCuda get() const { return {sorted.get(), block_start.get()}; }
  OnGpu<FanInPositive> sorted;
  OnGpu<int64_t> block_start;
};

template <typename T, typename Id>
FanInPositives PositivesOf(const FanInProblem<T, Id>& p) {
  FanInPositives positives;
  int64_t position;
  CHECK_TRUE(SortLabels(p.label_lists(), p.batch, p.classes, &positives, &position) == FanInLabelStatus::kOk);
  return positives;
}

template <typename T, typename Id>
struct LayerOnGpu {
  explicit LayerOnGpu(const FanInProblem<T, Id>& p)
      : weights(p.weights),
        indices(p.indices),
        bias(p.bias),
        x(p.x),
        blocks(std::vector<float>(p.batch.floats(), NAN)) {
    layer = p.layer();
    layer.weights = weights.get(), layer.indices = indices.get();
    if (!p.bias.empty()) layer.bias = bias.get();
    CUDA_OK(FanInLayOutCuda(p.batch, x.get(), blocks.get(), nullptr));
  }
  OnGpu<T> weights;
  OnGpu<Id> indices;
  OnGpu<float> bias, x, blocks;
  FanInLayer<T, Id> layer;
};

// ComputeFanIn of fan_in_testing.h on the GPU.
template <typename T, typename Id>
FanInOutput<T> ComputeFanInCuda(const FanInProblem<T, Id>& p, FanInLoss loss, const FanInOptions& options) {
  const FanInBatch& batch = p.batch;
  const LayerOnGpu<T, Id> gpu(p);
  const auto nans = [](int64_t n) { return std::vector<float>(n, NAN); };
  FanInOutput<T> out;
  int64_t bad;
  {
    const OnGpu<float> logits(nans(batch.size * p.classes));
    const OnGpu<char> workspace(kFanInLogitsWorkspaceCuda);
    CUDA_OK(
        FanInLogitsCuda(gpu.layer, batch, gpu.blocks.get(), logits.get(), workspace.get(), nullptr, &bad));
    CHECK_TRUE(bad == -1);
    out.logits = logits.Host();
  }
  const PositivesOnGpu positives(PositivesOf(p));
  const bool softmax = loss == FanInLoss::kSoftmax, hinge = loss == FanInLoss::kSquaredHinge;
  const OnGpu<float> losses(nans(batch.size)), lse(nans(softmax ? batch.size : 0)),
      mass(nans(softmax ? batch.size : 0));
  const OnGpu<uint8_t> active(std::vector<uint8_t>(hinge ? FanInActiveBytes(batch, p.classes) : 0, 0xff));
  {
    const OnGpu<char> workspace(FanInLossWorkspaceCuda(p.classes, batch));
    CUDA_OK(FanInLossForwardCuda(gpu.layer, batch, gpu.blocks.get(), loss, positives.get(),
                                 {losses.get(), lse.get(), mass.get(), active.get()}, workspace.get(),
                                 nullptr, &bad));
    CHECK_TRUE(bad == -1);
    out.loss = losses.Host(), out.lse = lse.Host(), out.mass = mass.Host(), out.active = active.Host();
  }
  std::vector<double> exact;
  p.Losses(loss, p.Logits(), &exact);
  const OnGpu<float> given(std::vector<float>(exact.begin(), exact.end())), grad_loss(p.grad_loss);
  FanInGradientsCuda gradients;
  if (options.given) {
    gradients.logits = given.get();
  } else {
    gradients.loss = loss, gradients.positives = positives.get(), gradients.grad_loss = grad_loss.get();
    gradients.lse = lse.get(), gradients.mass = mass.get();
    gradients.active = hinge ? active.get() : nullptr;
  }
  const OnGpu<float> hyper(HyperOf(options.rule, options.decay)),
      slots[] = {OnGpu<float>(p.slots[0]), OnGpu<float>(p.slots[1])},
      bias_slots[] = {OnGpu<float>(p.bias_slots[0]), OnGpu<float>(p.bias_slots[1])};
  const OnGpu<T> d_weights(p.weights);
  const OnGpu<float> d_bias(p.bias);
  FanInStep<T> step;
  step.rule = options.rule, step.hyper = hyper.get(), step.key = FanInKey(3, 4),
  step.first_class = p.first_class;
  const bool updates = options.rule != FanInRule::kNone;
  step.weights = updates ? gpu.weights.get() : d_weights.get();
  step.bias = p.bias.empty() ? nullptr : updates ? gpu.bias.get() : d_bias.get();
  if (!options.weights) step.weights = nullptr, step.bias = nullptr;
  for (int i = 0; i < kFanInMaxSlots; ++i)
    step.slots[i] = slots[i].get(), step.bias_slots[i] = bias_slots[i].get();
  const OnGpu<char> workspace(FanInBackwardWorkspaceCuda(p.classes, p.fan_in, batch, options.inputs));
  float* d_blocks = nullptr;
  CUDA_OK(FanInBackwardCuda(gpu.layer, batch, gpu.blocks.get(), gradients, step,
                            options.inputs ? &d_blocks : nullptr, workspace.get(), nullptr, &bad));
  CHECK_TRUE(bad == -1);
  out.weights = (updates ? gpu.weights : d_weights).Host(), out.bias = (updates ? gpu.bias : d_bias).Host();
  for (int i = 0; i < kFanInMaxSlots; ++i)
    out.slots[i] = slots[i].Host(), out.bias_slots[i] = bias_slots[i].Host();
  if (options.inputs) {
    const OnGpu<float> d_x(nans(batch.size * p.inputs));
    CUDA_OK(FanInLayBackCuda(batch, d_blocks, d_x.get(), nullptr));
    out.d_x = d_x.Host();
  }
  return out;
}

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_CUDA_TESTING_CUH_
