// Private to fan_in_backward.cu: the gradient of the inputs, without atomics.
//
// Classes are cut into ranges with a sum of their own each, [blocks, inputs, width]. An input of a sum
// belongs to one warp, its owner: warps go through the connections of the range and take those of their own
// inputs, in the order in which they come. At last the sums are added up, in the order of the ranges.
#ifndef LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_

#include "fan_in/cuda/fan_in_gradients.cuh"

namespace largeout {
namespace fan_in_gpu {

struct InputSums {
  InputSums() = default;
  InputSums(int64_t classes, const FanInBatch& batch, Arena* arena) : floats(batch.floats()) {
    constexpr int64_t kSumFloats = int64_t{32} << 20, kMostRanges = 64, kWantedWarps = 2048;
    ranges = std::clamp<int64_t>(kSumFloats / std::max<int64_t>(1, floats), 1, kMostRanges);
    ranges = std::min(ranges, std::max<int64_t>(1, classes / 1024));
    // Every owner reads all indices of its range: no more of them than keep the GPU busy.
    owners = kWarps;
    while (owners < 256 && owners * ranges * batch.blocks < kWantedWarps) owners *= 2;
    sums = arena->Take<float>(ranges * floats);
  }
  float* sums = nullptr;  // [ranges, blocks, inputs, width]
  int64_t floats = 0, ranges = 0, owners = 0;
};

// Connections of an owner that wait to be added: taken together, so that their reads overlap.
struct Pending {
  int32_t input, row;
  float weight;
};
constexpr int kPending = 64, kTogether = 4;

__device__ __forceinline__ void AddPending(const Pending* pending, int count, const float* gradients,
                                           int width, float* sums) {
  const int lane = Lane();
  for (int first = 0; first < count; first += kTogether) {
    Pending own[kTogether];
    float g[kTogether], sum[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      own[i] = first + i < count ? pending[first + i] : Pending{-1, 0, 0.f};
      if (own[i].input < 0 || lane >= width) continue;
      g[i] = gradients[static_cast<int64_t>(own[i].row) * width + lane];
      sum[i] = sums[static_cast<int64_t>(own[i].input) * width + lane];
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (own[i].input < 0 || lane >= width) continue;
#pragma unroll
      for (int before = 0; before < i; ++before) {
        if (own[before].input == own[i].input) sum[i] = sum[before];
      }
      sum[i] = fmaf(own[i].weight, g[i], sum[i]);
      sums[static_cast<int64_t>(own[i].input) * width + lane] = sum[i];
    }
  }
}

template <typename Id, int kPack>
struct alignas(sizeof(Id) * kPack) IndexPack {
  Id x[kPack];
};

// kPack connections of one row.
template <typename Id, int kPack>
struct RowPack {
  IndexPack<Id, kPack> index;
  int32_t row;  // of the chunk
  int64_t at;   // the number of the first one, among the chunk's
};

// Connections e, e + 1, ... of the rows in `active`; nothing from `end` on.
template <int kPack, typename Id>
__device__ __forceinline__ RowPack<Id, kPack> LoadPack(const Id* indices, const int32_t* active, int64_t fan_in,
                                                       int64_t e, int64_t end) {
  RowPack<Id, kPack> pack = {};
  if (e >= end) return pack;
  const int64_t i = e / fan_in;
  pack.row = active[i];
  pack.at = pack.row * fan_in + (e - i * fan_in);
  pack.index = *reinterpret_cast<const IndexPack<Id, kPack>*>(indices + pack.at);
  return pack;
}

// x: owners, y: blocks of examples, z: ranges of the chunk's active classes. A lane looks at kPack
// connections at a time, which divides the fan-in. weights: those of the chunk.
template <int kPack, typename T, typename Id>
__global__ void __launch_bounds__(kThreads) AddToInputs(FanInLayer<T, Id> layer, const T* weights,
                                                        FanInBatch batch, GradientChunk chunk, InputSums to) {
  __shared__ Pending stage[kWarps][kPending];
  const int lane = Lane(), width = batch.width;
  Pending* pending = stage[Warp()];
  const uint32_t owner = blockIdx.x * kWarps + Warp(), mask = static_cast<uint32_t>(to.owners) - 1;
  const int64_t range = blockIdx.z, fan_in = layer.fan_in;
  const Id* indices = layer.indices + chunk.first * fan_in;
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const float* gradients = chunk.values + block * chunk.rows * width;
    const int32_t* active = chunk.active + block * chunk.rows;
    const int64_t rows = chunk.ActiveRows(block), each = (rows + to.ranges - 1) / to.ranges;
    const int64_t begin = min(range * each, rows) * fan_in, end = min(range * each + each, rows) * fan_in;
    float* sums = to.sums + range * to.floats + block * batch.inputs * width;
    int count = 0;
    auto next = LoadPack<kPack>(indices, active, fan_in, begin + lane * kPack, end);
    for (int64_t base = begin; base < end; base += 32 * kPack) {
      const int64_t e = base + lane * kPack;
      const auto own = next;
      next = LoadPack<kPack>(indices, active, fan_in, e + 32 * kPack, end);
      unsigned mine = 0;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (e < end && (static_cast<uint32_t>(own.index.x[i]) & mask) == owner) mine |= 1u << i;
      }
      while (__any_sync(kAll, mine != 0)) {  // one of each lane
        Pending one{};
        const bool has = mine != 0;
        if (has) {
          const int64_t at = own.at + __ffs(mine) - 1;
          mine &= mine - 1;
          one = {static_cast<int32_t>(indices[at]), own.row, GpuToFloat(weights[at])};
        }
        const unsigned all = __ballot_sync(kAll, has);
        if (has) pending[count + __popc(all & ((1u << lane) - 1))] = one;
        count += __popc(all);
        __syncwarp();
        if (count <= kPending - 32) continue;
        AddPending(pending, count, gradients, width, sums);
        count = 0;
        __syncwarp();  // they have been read
      }
    }
    AddPending(pending, count, gradients, width, sums);
    __syncwarp();
  }
}

// The sums of all ranges in the place of the first one's.
__global__ void __launch_bounds__(kThreads) AddInputSums(InputSums to) {
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

#endif  // LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_
