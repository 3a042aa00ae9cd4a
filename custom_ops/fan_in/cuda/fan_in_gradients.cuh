// Private to the .cu files of fan_in: the gradients of the logits of some classes at a time, and the weights'
// gradients that follow from them.
#ifndef LARGEOUT_FAN_IN_FAN_IN_GRADIENTS_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_GRADIENTS_CUH_

#include "common/arena.h"
#include "fan_in/cuda/fan_in_labels.cuh"
#include "fan_in/cuda/fan_in_packed_keys.cuh"

namespace largeout {
namespace fan_in_gpu {

enum RowState : uint8_t { kNoGradient, kHasGradient, kBadRow };

// The gradients of the logits of `rows` classes from `first` on.
struct GradientChunk {
  float* values;   // [blocks, rows, width]; undefined where there is no gradient
  uint8_t* state;  // [blocks, rows] RowState
  int64_t first, rows;
};

// Memory for a chunk, and how many classes it has room for. connections: of a class, that are to be sorted.
// The gradients that their sums read should stay in the L2 cache.
struct ChunkMemory {
  ChunkMemory(int64_t classes, int64_t connections, const FanInBatch& batch, Arena* arena) {
    constexpr int64_t kFloats = int64_t{4} << 20, kConnections = int64_t{2} << 20, kLeastRows = 1024;
    rows = kFloats / std::max<int64_t>(1, batch.padded());
    rows = std::min(rows, kConnections / std::max<int64_t>(1, connections));
    if (connections > 0) rows = std::min(rows, kWholeRows);
    rows = std::min(classes, std::max(kLeastRows, rows) / 8 * 8);
    values = arena->Take<float>(rows * batch.padded());
    state = arena->Take<uint8_t>(rows * batch.blocks);
  }
  // The chunk of [first, last) that begins at `at`.
  GradientChunk At(int64_t at, int64_t last) const { return {values, state, at, std::min(rows, last - at)}; }
  float* values;
  uint8_t* state;
  int64_t rows;
};

// fan_in_gradients.cu: launches what fills the chunk; indices are checked there.
template <typename T, typename Id>
int ChunkGradients(const FanInLayer<T, Id>& layer, const FanInBatch& batch, InputBlocks blocks,
                   const GradientsOnGpu& from, const GradientChunk& chunk, Verdict* verdict,
                   GpuStream stream);

// The gradients of a loss by the logits of one example, that of this lane.
class LossGradient {
 public:
  __device__ LossGradient(const GradientsOnGpu& from, bool used, int64_t example)
      : loss_(from.loss), used_(used) {
    if (!used) return;
    grad_loss_ = scale_ = from.grad_loss[example];
    if (loss_ == FanInLoss::kSoftmax) lse_ = from.lse[example], scale_ *= from.mass[example];
  }
  // Of a class with logit z, which is a label of this weight or none; 0 without an example.
  __device__ float At(float z, bool label, float weight) const {
    if (!used_) return 0.f;
    if (loss_ == FanInLoss::kSoftmax) {
      const float log_prob = z - lse_;
      const float g = expf(log_prob > 0.f ? 0.f : log_prob) * scale_;  // above zero by rounding alone
      return label ? g - weight * grad_loss_ : g;
    }
    if (label) return static_cast<float>(weight * grad_loss_ * PositiveGradient(loss_, z));
    if (loss_ == FanInLoss::kSquaredHinge) return Positive(1.f + z) * (scale_ * 2.f);
    const float e = expf(-fabsf(z));
    return (z < 0.f ? e : 1.f) / (1.f + e) * scale_;
  }

 private:
  FanInLoss loss_;
  bool used_;
  float grad_loss_ = 0.f, scale_ = 0.f, lse_ = 0.f;
};

// A warp a class of the chunk: `apply` is handed the gradients of its weights for the inputs in indices [rows
// of the chunk, count], one a lane, and that of its bias. checked: whether all indices of rows with a
// gradient are known to be in range.
template <typename Apply>
__global__ void __launch_bounds__(kThreads, 3)
    RowGradients(Indices indices, int64_t count, bool checked, FanInBatch batch, InputBlocks blocks,
                 GradientChunk chunk, Apply apply, Verdict* verdict) {
  __shared__ Connection stage[kWarps][32];
  const int lane = Lane(), width = batch.width;
  const Vec4Lanes vec4(width);
  const int64_t r = int64_t{blockIdx.x} * kWarps + Warp(), row = chunk.first + r;
  if (r >= chunk.rows) return;
  bool found = false;
  for (int64_t block = 0; block < batch.blocks; ++block) {
    const uint8_t state = chunk.state[block * chunk.rows + r];
    if (state == kBadRow) return;
    found = found || state == kHasGradient;
  }
  if (!checked && !RowInRange(indices, r * count, count, batch.inputs))
    return Found(&verdict->candidate, row);
  typename Apply::OnDevice on(apply, found);
  if (on.Skips()) return;
  for (int64_t first = 0; first < count; first += 32) {
    const int n = static_cast<int>(min(count - first, int64_t{32}));
    float sums[Vec4Lanes::kLoads] = {};
    if (found) {
      stage[Warp()][lane].input = lane < n ? static_cast<int32_t>(indices[r * count + first + lane]) : 0;
      __syncwarp();
      for (int64_t block = 0; block < batch.blocks; ++block) {
        const int64_t at = block * chunk.rows + r;
        if (chunk.state[at] != kHasGradient) continue;
        const float g = lane < width ? chunk.values[at * width + lane] : 0.f;
        (blocks + block * batch.inputs * width).Call([&](const auto* at) {
          float4 x[Vec4Lanes::kLoads];
          vec4.Read(stage[Warp()], n, at, x);
          Vec4Lanes::AddGradients(vec4.OfExamples(g), x, sums);
        });
      }
      __syncwarp();  // the stage has been read
    }
    const float sum = found ? vec4.SumOfConnection(sums) : 0.f;
    if (lane < n) on.Weight(row * count + first + lane, sum);
  }
  if (!on.HasBias()) return;
  float sum = 0.f;
  for (int64_t block = 0; found && block < batch.blocks; ++block) {
    const int64_t at = block * chunk.rows + r;
    if (chunk.state[at] == kHasGradient && lane < width) sum += chunk.values[at * width + lane];
  }
  sum = WarpSum(sum);
  if (lane == 0) on.Bias(row, sum);
}

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_GRADIENTS_CUH_
