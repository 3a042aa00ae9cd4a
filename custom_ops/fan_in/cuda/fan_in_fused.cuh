// Private to fan_in_backward.cu: a training step of classes of up to 32 connections, for a batch of up to 256
// examples, by one gather. A warp has a class: it keeps what it reads of a block of inputs in registers, for
// the logits and, once the gradients of those are known, for those of the weights, which are applied when all
// blocks have been gone through.
//
// The gradients of the logits, and the connections as they were, are kept for the gradient of the inputs
// (fan_in_input_gradient.cuh). Not so of few inputs (fan_in_fused_sums.cuh).
//
// Bounds, for each of `classes x fan_in` connections: weight, index and slots read, weight and slots written;
// one run of 64 or 128 bytes (bfloat16: 32 or 64) for each block of examples gathered from the cache that
// holds the inputs (two without this); 6 flops for each example.
#ifndef LARGEOUT_FAN_IN_FAN_IN_FUSED_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_FUSED_CUH_

#include "fan_in/cuda/fan_in_gradients.cuh"

namespace largeout {
namespace fan_in_gpu {

constexpr int64_t kFusedFanIn = 32, kFusedBlocks = 8;

// Whether a step of a loss is made by one gather.
inline bool IsFused(int64_t fan_in, const FanInBatch& batch) {
  return fan_in <= kFusedFanIn && batch.blocks <= kFusedBlocks;
}

// A warp has a range of the classes: FanInTuning::kFusedWarps of them, or fewer.
inline int FusedRowsOfWarp(int64_t classes) {
  constexpr int64_t kMost = FanInTuning::kFusedWarps;
  return static_cast<int>((classes + kMost - 1) / kMost);
}

// Data for the gradient of the inputs, where it is not summed here.
template <typename T>
struct FusedKept {
  GradientChunk chunk;  // `values` null: nothing
  PackedKeys kind;
  uint64_t* words;  // [rows of the chunk, fan_in]
  bool written;     // `state` and `words` are there, as of classes without a gradient
  T* weights;       // [rows of the chunk, fan_in], where words are without
};

// A `FanInLayer` with indices of either width.
template <typename T>
struct FusedLayer {
  template <typename Id>
  explicit FusedLayer(const FanInLayer<T, Id>& layer)
      : weights(layer.weights),
        indices(layer.indices),
        bias(layer.bias),
        classes(layer.classes),
        fan_in(layer.fan_in),
        inputs(layer.inputs) {}
  const T* weights;
  Indices indices;
  const float* bias;
  int64_t classes, fan_in, inputs;
};

// The part of a class that a warp prefetches: a connection of each lane, and the bias.
template <typename T>
struct FusedStart {
  uint32_t index = 0;
  T weight = T();
  float bias = 0.f;
};

// The arguments of a fused kernel, and the work of a warp on one class.
template <typename ApplyT, typename T>
struct FusedStep {
  using Apply = ApplyT;
  FusedLayer<T> layer;
  FanInBatch batch;
  InputBlocks inputs;
  GradientsOnGpu from;
  Apply apply;
  Verdict* verdict;

  // Whether a class may have a gradient for a block of examples, or for any.
  __device__ __forceinline__ bool Active(int row, int block) const {
    if (from.active == nullptr) return true;
    return (from.active[block * ((layer.classes + 7) / 8) + row / 8] >> (row % 8) & 1) != 0;
  }
  __device__ __forceinline__ bool Active(int row) const {
    bool any = from.active == nullptr;
    for (int block = 0; !any && block < batch.blocks; ++block) any = Active(row, block);
    return any;
  }

  // Nothing of rows from `end` on, and of those that have no gradient.
  __device__ __forceinline__ FusedStart<T> Start(int row, int end) const {
    FusedStart<T> start;
    if (row >= end || !Active(row)) return start;
    if (layer.bias != nullptr) start.bias = layer.bias[row];
    if (Lane() < layer.fan_in) {
      const int64_t at = row * layer.fan_in + Lane();
      start.index = layer.indices[at], start.weight = layer.weights[at];
    }
    return start;
  }

  // Whether the connections of a class, one a lane, are all in range.
  __device__ __forceinline__ bool Good(int row, uint32_t index) const {
    const bool good = __all_sync(kAll, Lane() >= layer.fan_in || InRange(index, layer.inputs)) != 0;
    if (!good) Found(&verdict->row, row);
    return good;
  }

  // One class, whose connections are in shared memory: keep(block, g, has) with the gradient of the logit of
  // each example, and whether any of the block's is other than zero; then the step of weights and bias.
  // labels: where the cursor of each block is. kOne: of one block of examples, which takes fewer registers.
  // Returns whether there is a gradient at all.
  template <bool kOne, typename Keep>
  __device__ __forceinline__ bool Class(int row, float bias, const Vec4Lanes& vec4,
                                        const Connection* connections, LabelPlace* labels,
                                        const Keep& keep) const {
    const int lane = Lane(), width = batch.width, fan_in = static_cast<int>(layer.fan_in);
    float sums[Vec4Lanes::kLoads] = {}, of_bias = 0.f;
    bool found = false;
    for (int block = 0; block < (kOne ? 1 : batch.blocks); ++block) {
      float g = 0.f;
      bool has = false;
      if (Active(row, block)) {
        float4 x[Vec4Lanes::kLoads], products = make_float4(0.f, 0.f, 0.f, 0.f);
        (inputs + block * batch.inputs * width).Call([&](const auto* at) {
          vec4.Read(connections, fan_in, at, x);
        });
        vec4.AddProducts(connections, fan_in, x, &products);
        g = Gradient(row, block, bias + vec4.SumOfExample(products), &labels[block]);
        has = __any_sync(kAll, g != 0.f) != 0;
        if (has) Vec4Lanes::AddGradients(vec4.OfExamples(g), x, sums);
      }
      keep(block, g, has);
      of_bias += g;
      found = found || has;
    }
    typename Apply::OnDevice on(apply, found);
    if (on.Skips()) return found;
    const float sum = found ? vec4.SumOfConnection(sums) : 0.f;
    if (lane < fan_in) on.Weight(int64_t{row} * fan_in + lane, sum);
    if (!on.HasBias()) return found;
    of_bias = WarpSum(of_bias);
    if (lane == 0) on.Bias(row, of_bias);
    return found;
  }

 private:
  // That of the logit z of a class for the example of this lane.
  __device__ __forceinline__ float Gradient(int row, int block, float z, LabelPlace* place) const {
    const int example = block * batch.width + Lane();
    float weight = 0.f;
    LabelCursor labels(from.positives, block, *place);
    const bool label = labels.Find(row, example, &weight);
    __syncwarp();  // the place has been read
    if (Lane() == 0) *place = labels.Place();
    const LossGradient of_loss(from, Lane() < batch.width && example < batch.size, example);
    return of_loss.At(z, label, weight);
  }
};

// The rows of [begin, end) that a warp has to go through, in their order: those that may have a gradient, or
// all.
template <typename Step>
class RowsToDo {
 public:
  __device__ RowsToDo(const Step& step, int begin, int end, bool all)
      : step_(step), base_(begin), end_(end), all_(all) {}

  // The next row, or `end`.
  __device__ __forceinline__ int Next() {
    while (left_ == 0) {
      if (base_ >= end_) return end_;
      const int row = base_ + Lane();
      left_ = __ballot_sync(kAll, row < end_ && (all_ || step_.Active(row)));
      base_ += 32;
    }
    const int row = base_ - 33 + __ffs(left_);
    left_ &= left_ - 1;
    return row;
  }

 private:
  const Step& step_;
  int base_;  // rows before it were looked at
  const int end_;
  const bool all_;
  unsigned left_ = 0;  // of the 32 rows before `base_`
};

// The classes of a chunk. kOne: for one block of examples.
template <bool kOne, typename Step, typename T>
__global__ void __launch_bounds__(kThreads, 3) FusedRows(Step step, FusedKept<T> kept, int rows_of_warp) {
  __shared__ Connection stage[kWarps][32];
  __shared__ LabelPlace labels[kWarps][kFusedBlocks];
  const GradientChunk& chunk = kept.chunk;
  const int lane = Lane(), warp = Warp(), width = step.batch.width, first = static_cast<int>(chunk.first),
            rows = static_cast<int>(chunk.rows), fan_in = static_cast<int>(step.layer.fan_in);
  const int64_t from = (int64_t{blockIdx.x} * kWarps + warp) * rows_of_warp;
  if (from >= rows) return;
  const int begin = first + static_cast<int>(from), end = min(begin + rows_of_warp, first + rows);
  const Vec4Lanes vec4(width);
  if (lane < step.batch.blocks) labels[warp][lane] = LabelCursor(step.from.positives, lane, begin).Place();
  const bool all = !typename Step::Apply::OnDevice(step.apply, false).Skips();
  RowsToDo<Step> to_do(step, begin, end, all);
  int next = to_do.Next();
  FusedStart<T> start_of_next = step.Start(next, end);
  while (next < end) {
    const int row = next, r = row - first;
    const FusedStart<T> start = start_of_next;
    next = to_do.Next();
    start_of_next = step.Start(next, end);
    if (!step.Good(row, start.index)) {
      if (chunk.values == nullptr) continue;
      if (lane < step.batch.blocks) chunk.state[lane * chunk.rows + r] = kBadRow;
      if (lane < fan_in) kept.words[int64_t{r} * fan_in + lane] = kept.kind.Without(start.index);
      continue;
    }
    stage[warp][lane] = {static_cast<int32_t>(start.index), GpuToFloat(start.weight)};
    __syncwarp();
    const auto keep = [&](int block, float g, bool has) {
      if (chunk.values == nullptr) return;
      const int64_t at = block * chunk.rows + r;
      if (has && lane < width) chunk.values[at * width + lane] = g;
      if (lane == 0) chunk.state[at] = has ? kHasGradient : kNoGradient;
    };
    const bool found = step.template Class<kOne>(row, start.bias, vec4, stage[warp], labels[warp], keep);
    if (chunk.values != nullptr && lane < fan_in && (found || !kept.written)) {
      const int64_t at = int64_t{r} * fan_in + lane;
      const auto word = kept.kind.Of(start.index, r, lane, GpuToFloat(start.weight));
      kept.words[at] = found ? word : kept.kind.Without(start.index);
      if (found && !kept.kind.Whole()) kept.weights[at] = start.weight;
    }
    __syncwarp();  // the stage has been read
  }
}

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_FUSED_CUH_
