// The gradients of the logits of some classes: given ones, turned, or those of a loss, whose logits are
// recomputed.
#include "common/cuda/launch.cuh"
#include "fan_in/cuda/fan_in_gradients.cuh"

namespace largeout {
namespace fan_in_gpu {
namespace {

constexpr int64_t kRun = 16;  // classes that a warp goes through
constexpr int kTile = 32;

template <typename T, typename Id>
__global__ void __launch_bounds__(kThreads)
    OfLoss(FanInLayer<T, Id> layer, FanInBatch batch, InputBlocks blocks, GradientsOnGpu from,
           GradientChunk chunk, Verdict* verdict) {
  __shared__ Connection stage[kWarps][32];
  const int lane = Lane(), width = batch.width;
  const Vec4Lanes vec4(width);
  const int64_t begin = (int64_t{blockIdx.x} * kWarps + Warp()) * kRun, end = min(begin + kRun, chunk.rows);
  if (begin >= end) return;
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const int64_t example = block * width + lane;
    const bool used = lane < width && example < batch.size;
    const LossGradient of_loss(from, used, example);
    const uint8_t* active =
        from.active == nullptr ? nullptr : from.active + block * ((layer.classes + 7) / 8);
    LabelCursor labels(from.positives, block, chunk.first + begin);
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = chunk.first + r, at = block * chunk.rows + r;
      RowState state = kNoGradient;
      if (active == nullptr || (active[row / 8] >> (row % 8) & 1) != 0) {
        float z, weight = 0.f;
        if (RowLogit(layer, row, StartRow(layer, row, layer.classes), blocks + block * batch.inputs * width,
                     vec4, stage[Warp()], &z)) {
          const bool label = labels.Find(row, example, &weight);
          const float g = of_loss.At(z, label, weight);
          if (__any_sync(kAll, g != 0.f)) state = kHasGradient;
          if (state == kHasGradient && lane < width) chunk.values[at * width + lane] = g;
        } else {
          state = kBadRow;
          Found(&verdict->row, row);
        }
      }
      if (lane == 0) chunk.state[at] = state;
    }
  }
}

template <typename Id>
__global__ void __launch_bounds__(kThreads)
    Given(const Id* indices, int64_t fan_in, int64_t classes, FanInBatch batch, const float* logits,
          GradientChunk chunk, Verdict* verdict) {
  __shared__ float tile[kTile][33];
  const int lane = Lane(), width = batch.width;
  const int64_t first = int64_t{blockIdx.x} * kTile, rows = min(int64_t{kTile}, chunk.rows - first);
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const int64_t example = block * width;
    for (int e = Warp(); e < width; e += kWarps) {
      const bool used = example + e < batch.size && lane < rows;
      tile[lane][e] = used ? logits[(example + e) * classes + chunk.first + first + lane] : 0.f;
    }
    __syncthreads();
    for (int i = Warp(); i < rows; i += kWarps) {
      const int64_t row = chunk.first + first + i, at = block * chunk.rows + first + i;
      const float g = lane < width ? tile[i][lane] : 0.f;
      RowState state = __any_sync(kAll, g != 0.f) ? kHasGradient : kNoGradient;
      if (state == kHasGradient && !RowInRange(Indices(indices), row * fan_in, fan_in, batch.inputs)) {
        state = kBadRow;
        Found(&verdict->row, row);
      }
      if (state == kHasGradient && lane < width) chunk.values[at * width + lane] = g;
      if (lane == 0) chunk.state[at] = state;
    }
    __syncthreads();
  }
}

}  // namespace

template <typename T, typename Id>
int ChunkGradients(const FanInLayer<T, Id>& layer, const FanInBatch& batch, InputBlocks blocks,
                   const GradientsOnGpu& from, const GradientChunk& chunk, Verdict* verdict,
                   GpuStream stream) {
  if (batch.size == 0 || chunk.rows == 0) return 0;
  if (from.logits != nullptr) {
    return Launch(Given<Id>, Grid(Blocks(chunk.rows, kTile), batch), kThreads, 0, stream, layer.indices,
                  layer.fan_in, layer.classes, batch, from.logits, chunk, verdict);
  }
  return Launch(OfLoss<T, Id>, Grid(Blocks(chunk.rows, kRun * kWarps), batch), kThreads, 0, stream, layer,
                batch, blocks, from, chunk, verdict);
}

#define LARGEOUT_GRADIENTS(T, Id)                                                              \
  template int ChunkGradients<T, Id>(const FanInLayer<T, Id>&, const FanInBatch&, InputBlocks, \
                                     const GradientsOnGpu&, const GradientChunk&, Verdict*, GpuStream);
LARGEOUT_GRADIENTS(float, uint16_t)
LARGEOUT_GRADIENTS(float, uint32_t)
LARGEOUT_GRADIENTS(bfloat16, uint16_t)
LARGEOUT_GRADIENTS(bfloat16, uint32_t)
#undef LARGEOUT_GRADIENTS

}  // namespace fan_in_gpu
}  // namespace largeout
