// Private to fan_in_backward.cu: the fused step where there is one block of examples and the gradients of all
// inputs fit shared memory (1,600 x 32 floats are 205 KB). The warps of a thread block leave 16 classes at a time in shared memory, and each takes, in
// their order, the connections of the inputs that it owns. The sums of thread blocks are added up in their
// order.
#ifndef LARGEOUT_FAN_IN_FAN_IN_FUSED_SUMS_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_FUSED_SUMS_CUH_

#include "fan_in/cuda/fan_in_fused.cuh"

namespace largeout {
namespace fan_in_gpu {

// With sums in shared memory a thread block has a range: FanInTuning::kSumBlocks of them, or fewer.
constexpr int kSumWarps = 16, kSumThreads = kSumWarps * 32;
struct FusedRanges {
  explicit FusedRanges(int64_t classes) {
    constexpr int64_t kLeastRows = 4 * kSumWarps;
    count = std::clamp<int64_t>(classes / kLeastRows, 1, FanInTuning::kSumBlocks);
    rows = std::max<int64_t>(1, (classes + count - 1) / count);
    count = (classes + rows - 1) / rows;
  }
  int64_t count, rows;
};

// Classes in shared memory, by warps, twice: one set is taken while the next is written.
struct SumStage {
  Connection connections[2][kSumWarps][32];  // as they were; input -1: none
  float gradients[2][kSumWarps][32];
  bool found[2][kSumWarps];
  LabelPlace labels[kSumWarps];
};

// The most shared memory that a thread block may have.
inline int64_t SharedBytesOfBlock() {
  constexpr int64_t kUnasked = 48 << 10;  // that every device gives
  int device = 0, most = 0;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
  return known ? most : kUnasked;
}

// Bytes of shared memory for the sums of all inputs, or 0 where they are not made there.
inline int FusedSumBytes(const FanInBatch& batch) {
  const int64_t bytes = batch.inputs * batch.width * static_cast<int64_t>(sizeof(float));
  const bool fits =
      batch.blocks == 1 && bytes + static_cast<int64_t>(sizeof(SumStage)) <= SharedBytesOfBlock();
  return fits ? static_cast<int>(bytes) : 0;
}

// The sums of thread blocks.
struct RangeSums {
  float* sums;  // [ranges, floats]
  int64_t floats, ranges;
};

// All classes, for one block of examples; sums [ranges, inputs, width] are written.
template <typename Step>
__global__ void __launch_bounds__(kSumThreads, 1) FusedSums(Step step, FusedRanges ranges, float* sums) {
  __shared__ SumStage stage;
  float* own_sums = DynamicShared<float>();
  const int lane = Lane(), warp = Warp(), width = step.batch.width;
  const Vec4Lanes vec4(width);
  const int64_t floats = step.batch.inputs * width;
  const int begin = static_cast<int>(blockIdx.x * ranges.rows),
            end = static_cast<int>(min(begin + ranges.rows, step.layer.classes));
  for (int64_t i = threadIdx.x; i < floats; i += kSumThreads) own_sums[i] = 0.f;
  if (lane == 0) stage.labels[warp] = LabelCursor(step.from.positives, 0, begin).Place();
  auto next = step.Start(begin + warp, end);
  int set = 0;
  for (int base = begin; base < end; base += kSumWarps, set ^= 1) {
    const int row = base + warp;
    const auto start = next;
    next = step.Start(row + kSumWarps, end);
    bool found = false;
    if (row < end && step.Good(row, start.index)) {
      Connection* connections = stage.connections[set][warp];
      connections[lane] = {lane < step.layer.fan_in ? static_cast<int32_t>(start.index) : -1,
                           GpuToFloat(start.weight)};
      __syncwarp();
      const auto keep = [&](int, float g, bool) { stage.gradients[set][warp][lane] = g; };
      found = step.template Class<true>(row, start.bias, vec4, connections, &stage.labels[warp], keep);
    }
    if (lane == 0) stage.found[set][warp] = found;
    __syncthreads();  // the set is written, and the one before it has been taken
    for (int c = 0; c < kSumWarps; ++c) {
      if (!stage.found[set][c]) continue;
      const Connection* connections = stage.connections[set][c];
      const int mine = connections[lane].input;
      const float g = stage.gradients[set][c][lane];
      unsigned mask = __ballot_sync(kAll, mine >= 0 && mine % kSumWarps == warp);
      while (mask != 0) {
        const Connection one = connections[__ffs(mask) - 1];
        mask &= mask - 1;
        float* sum = own_sums + one.input * width + lane;
        if (lane < width) *sum = fmaf(one.weight, g, *sum);
      }
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < floats; i += kSumThreads) sums[blockIdx.x * floats + i] = own_sums[i];
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

#endif  // LARGEOUT_FAN_IN_FAN_IN_FUSED_SUMS_CUH_
