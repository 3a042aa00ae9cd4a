// Private to fan_in_backward.cu: a training step of classes of up to 32 connections, for a batch of up to 256
// examples, by one gather. A warp has a class: it keeps what it reads of a block of inputs in registers, for
// the logits and, once the gradients of those are known, for those of the weights, which are applied when all
// blocks have been gone through.
//
// The gradients of the logits, and the weights as they were, are kept for the gradient of the inputs
// (fan_in_input_gradient.cuh). Not so for the squared hinge, which most classes have no gradient of, where
// there is one block of examples and all inputs fit shared memory (1,600 x 32 floats are 205 KB): there the
// warps of a thread block leave 16 classes at a time in shared memory, and each takes, in their order, the
// connections of the inputs that it owns. The sums of thread blocks are added up in their order.
//
// Bounds, for each of `classes x fan_in` connections: weight, index and slots read, weight and slots written;
// one run of 64 or 128 bytes for each block of examples gathered from the cache that holds the inputs (two
// without this); 6 flops for each example.
#ifndef LARGEOUT_FAN_IN_FAN_IN_FUSED_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_FUSED_CUH_

#include "fan_in/cuda/fan_in_gradients.cuh"

namespace largeout {
namespace fan_in_gpu {

constexpr int kFusedWarps = 16, kFusedThreads = kFusedWarps * 32;
constexpr int64_t kFusedFanIn = 32, kFusedBlocks = 8;

// Whether a step of a loss is made by one gather.
inline bool IsFused(int64_t fan_in, const FanInBatch& batch) {
  return fan_in <= kFusedFanIn && batch.blocks <= kFusedBlocks;
}

// A thread block has a range of the classes. As many as fill two times 132 multiprocessors, or fewer.
struct FusedRanges {
  explicit FusedRanges(int64_t classes) {
    constexpr int64_t kMost = kInEmulation ? 5 : 264, kLeastRows = 4 * kFusedWarps;
    count = std::clamp<int64_t>(classes / kLeastRows, 1, kMost);
    rows = std::max<int64_t>(1, (classes + count - 1) / count);
    count = (classes + rows - 1) / rows;
  }
  int64_t count, rows;
};

// Classes in shared memory, by warps, twice: one set is taken while the next is written.
struct FusedStage {
  Connection connections[2][kFusedWarps][32];  // as they were; input -1: none
  float gradients[2][kFusedWarps][32];
  bool found[2][kFusedWarps];
  LabelPlace labels[kFusedWarps][kFusedBlocks];  // where the cursors of the warps are
};

// What a thread block may have at the most.
inline int64_t SharedBytesOfBlock() {
  int device = 0, most = 0;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
  return known ? most : static_cast<int64_t>(kSharedBytes);
}

// Bytes of shared memory for the sums of all inputs, or 0 where they are not made there.
inline int FusedSumBytes(FanInLoss loss, const FanInBatch& batch) {
  if (loss != FanInLoss::kSquaredHinge) return 0;
  const int64_t bytes = batch.inputs * batch.width * static_cast<int64_t>(sizeof(float));
  const bool fits =
      batch.blocks == 1 && bytes + static_cast<int64_t>(sizeof(FusedStage)) <= SharedBytesOfBlock();
  return fits ? static_cast<int>(bytes) : 0;
}

// The sums of thread blocks.
struct RangeSums {
  float* sums;  // [ranges, floats]
  int64_t floats, ranges;
};

// What the input gradient has to know where it is not summed here.
template <typename T>
struct FusedKept {
  GradientChunk chunk;  // `values` null: nothing
  T* weights;           // [rows of the chunk, fan_in]
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

// kSums: sums [ranges, inputs, width] are written. The classes are those of `chunk`.
template <typename Apply, bool kSums, typename T>
__global__ void __launch_bounds__(kFusedThreads, 1)
    FusedRows(FusedLayer<T> layer, FanInBatch batch, const float* inputs, FanInGradientsCuda from,
              Apply apply, FusedRanges ranges, FusedKept<T> kept, float* sums, Verdict* verdict) {
  __shared__ FusedStage stage;
  float* own_sums = DynamicShared<float>();
  const int lane = Lane(), warp = Warp(), width = batch.width;
  const int fan_in = static_cast<int>(layer.fan_in);
  const int64_t floats = batch.inputs * width;
  const Quads quads(width);
  const int64_t first = kept.chunk.first, all = kept.chunk.rows;
  const int64_t begin = blockIdx.x * ranges.rows, end = min(begin + ranges.rows, all);
  if constexpr (kSums) {
    for (int64_t i = threadIdx.x; i < floats; i += kFusedThreads) own_sums[i] = 0.f;
  }
  if (lane < batch.blocks)
    stage.labels[warp][lane] = LabelCursor(from.positives, lane, first + begin).Place();
  __syncwarp();
  // Whether a class may have a gradient for a block of examples.
  const auto active = [&](int64_t row, int64_t block) {
    if (from.active == nullptr) return true;
    return (from.active[block * ((layer.classes + 7) / 8) + row / 8] >> (row % 8) & 1) != 0;
  };
  // The connection of this lane; 0: none, or of a class that needs none. It is fetched a class ahead.
  const auto fetch = [&](int64_t r, uint32_t* index, T* weight) {
    *index = 0, *weight = T();
    if (r >= end || lane >= fan_in) return;
    bool any = false;
    for (int64_t block = 0; block < batch.blocks; ++block) any = any || active(first + r, block);
    if (any)
      *index = layer.indices[(first + r) * fan_in + lane],
      *weight = layer.weights[(first + r) * fan_in + lane];
  };
  uint32_t next_index;
  T next_weight;
  fetch(begin + warp, &next_index, &next_weight);
  int set = 0;
  for (int64_t base = begin; base < end; base += kFusedWarps, set ^= 1) {
    const int64_t r = base + warp, row = first + r;
    const uint32_t index = next_index;
    const float weight = GpuToFloat(next_weight);
    fetch(r + kFusedWarps, &next_index, &next_weight);
    bool found = false;
    if (r < end) {
      const int64_t at = row * fan_in + lane;
      const bool good = __all_sync(kAll, lane >= fan_in || InRange(index, layer.inputs)) != 0;
      if (!good) Found(&verdict->row, row);
      Connection* connections = stage.connections[set][warp];
      connections[lane] = {lane < fan_in ? static_cast<int32_t>(index) : -1, weight};
      __syncwarp();
      float sums_of[Quads::kLoads] = {}, of_bias = 0.f;
      for (int64_t block = 0; block < (kSums ? 1 : batch.blocks); ++block) {
        bool has = false;
        if (good && active(row, block)) {
          const int64_t example = block * width + lane;
          const float bias = layer.bias == nullptr ? 0.f : layer.bias[row];
          float label_weight = 0.f;
          float4 x[Quads::kLoads], products = make_float4(0.f, 0.f, 0.f, 0.f);
          quads.Read(connections, fan_in, inputs + block * floats, x);
          quads.AddProducts(connections, fan_in, x, &products);
          const float z = bias + quads.SumOfExample(products);
          LabelCursor labels(from.positives, block, stage.labels[warp][block]);
          const bool label = labels.Find(row, example, &label_weight);
          const LossGradient of_loss(from, lane < width && example < batch.size, example);
          const float g = of_loss.At(z, label, label_weight);
          has = __any_sync(kAll, g != 0.f) != 0;
          __syncwarp();  // the place of the cursor has been read
          if (lane == 0) stage.labels[warp][block] = labels.Place();
          if (has) {
            of_bias += g;
            Quads::AddGradients(quads.OfExamples(g), x, sums_of);
          }
          if constexpr (kSums) {
            stage.gradients[set][warp][lane] = g;
          } else if (kept.chunk.values != nullptr && has && lane < width) {
            kept.chunk.values[(block * all + r) * width + lane] = g;
          }
        }
        if (!kSums && kept.chunk.values != nullptr && lane == 0)
          kept.chunk.state[block * all + r] = !good ? kBadRow : has ? kHasGradient : kNoGradient;
        found = found || has;
      }
      if (!kSums && kept.chunk.values != nullptr && found && lane < fan_in)
        GpuFromFloat(weight, &kept.weights[r * fan_in + lane]);
      typename Apply::OnDevice on(apply, found);
      if (good && !on.Skips()) {
        const float sum = found ? quads.SumOfConnection(sums_of) : 0.f;
        if (lane < fan_in) on.Weight(at, sum);
        if (on.HasBias()) {
          of_bias = WarpSum(of_bias);
          __syncwarp();  // all lanes have read the bias
          if (lane == 0) on.Bias(row, of_bias);
        }
      }
    }
    if constexpr (!kSums) __syncwarp();  // the connections have been read
    if constexpr (kSums) {
      if (lane == 0) stage.found[set][warp] = found;
      __syncthreads();  // the set is written, and the one before it has been taken
      for (int c = 0; c < kFusedWarps; ++c) {
        if (!stage.found[set][c]) continue;
        const Connection* connections = stage.connections[set][c];
        const int mine = connections[lane].input;
        const float g = stage.gradients[set][c][lane];
        unsigned mask = __ballot_sync(kAll, mine >= 0 && mine % kFusedWarps == warp);
        while (mask != 0) {
          const Connection one = connections[__ffs(mask) - 1];
          mask &= mask - 1;
          float* sum = own_sums + one.input * width + lane;
          if (lane < width) *sum = fmaf(one.weight, g, *sum);
        }
      }
    }
  }
  if constexpr (kSums) {
    __syncthreads();
    for (int64_t i = threadIdx.x; i < floats; i += kFusedThreads) sums[blockIdx.x * floats + i] = own_sums[i];
  }
}

// The sums of all ranges in the place of the first one's.
__global__ void __launch_bounds__(kThreads) AddRangeSums(RangeSums to) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < to.floats;
       i += int64_t{gridDim.x} * kThreads) {
    float sum = to.sums[i];
#pragma unroll 8
    for (int64_t range = 1; range < to.ranges; ++range) sum += to.sums[range * to.floats + i];
    to.sums[i] = sum;
  }
}

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_FUSED_CUH_
