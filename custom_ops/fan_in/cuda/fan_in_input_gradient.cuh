// Private to fan_in_backward.cu: the gradient of the inputs from the gradients of a chunk of logits, without
// atomics.
//
// Inputs are cut into slices whose sums fit shared memory, classes into ranges. A thread block has one of
// each, and a block of examples: its warps look through the connections of the range's active classes for
// those of the slice and leave some at a time in lists; then each warp takes, in the order of the lists,
// those of the inputs that it owns. The sums of ranges go to memory and are added up at the end, in their
// order.
//
// Bounds, for each connection of an active class: its index read once for each slice, from the L2 cache but
// for the first time; its weight and one run of 64 or 128 bytes of gradients, from the L2 cache; a read and a
// write of as much shared memory; 2 flops for each example. And the sums of the ranges, read and written for
// each chunk: 132 slices of them, up to 30 MB.
#ifndef LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_

#include "fan_in/cuda/fan_in_fused.cuh"

namespace largeout {
namespace fan_in_gpu {

constexpr int kSumWarps = 16, kSumThreads = kSumWarps * 32;

// Connections that wait to be added.
struct Pending {
  int32_t input, row;  // of the slice; of the chunk
  float weight;
};
constexpr int kPending = 64,
              kTogether = 8;  // of a list; that are added together, so that their reads overlap

struct PendingLists {
  Pending lists[kSumWarps][kPending];
  int counts[kSumWarps];
};

struct InputSums {
  InputSums() = default;
  InputSums(int64_t classes, const FanInBatch& batch, Arena* arena) : floats(batch.floats()) {
    constexpr int64_t kBlocks = 132, kLeastRows = 256;
    const int64_t of_input = batch.width * static_cast<int64_t>(sizeof(float));
    slice = std::max<int64_t>(kSumWarps,
                              (SharedBytesOfBlock() - static_cast<int64_t>(sizeof(PendingLists))) / of_input);
    if (kInEmulation) slice = 48;
    slices = std::max<int64_t>(1, (batch.inputs + slice - 1) / slice);
    slice = (batch.inputs + slices - 1) / slices;
    ranges = std::clamp<int64_t>(kBlocks / (slices * std::max<int64_t>(1, batch.blocks)), 1,
                                 std::max<int64_t>(1, classes / kLeastRows));
    sums = arena->Take<float>(ranges * floats);
  }
  int SharedBytes(const FanInBatch& batch) const {
    return static_cast<int>(slice * batch.width * static_cast<int64_t>(sizeof(float)));
  }
  float* sums = nullptr;  // [ranges, blocks, inputs, width]
  int64_t floats = 0, ranges = 0, slice = 0, slices = 0;
};

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
__device__ __forceinline__ RowPack<Id, kPack> LoadPack(const Id* indices, const int32_t* active,
                                                       int64_t fan_in, int64_t e, int64_t end) {
  RowPack<Id, kPack> pack = {};
  if (e >= end) return pack;
  const int64_t i = e / fan_in;
  pack.row = active[i];
  pack.at = pack.row * fan_in + (e - i * fan_in);
  pack.index = *reinterpret_cast<const IndexPack<Id, kPack>*>(indices + pack.at);
  return pack;
}

// Adds what this warp owns of a list, in its order. gradients: [rows of the chunk, width]; sums: of the
// slice.
__device__ __forceinline__ void AddOwned(const Pending* list, int count, const float* gradients, int width,
                                         float* sums) {
  const int lane = Lane();
  for (int first = 0; first < count; first += 32) {
    const bool mine = first + lane < count && list[first + lane].input % kSumWarps == Warp();
    unsigned mask = __ballot_sync(kAll, mine);
    while (mask != 0) {
      Pending own[kTogether];
      float g[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        own[i] = mask != 0 ? list[first + __ffs(mask) - 1] : Pending{-1, 0, 0.f};
        mask &= mask - 1;
        g[i] = own[i].input >= 0 && lane < width ? gradients[static_cast<int64_t>(own[i].row) * width + lane]
                                                 : 0.f;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (own[i].input < 0 || lane >= width) continue;
        float* sum = sums + own[i].input * width + lane;
        *sum = fmaf(own[i].weight, g[i], *sum);
      }
    }
  }
}

// x: slices, y: blocks of examples, z: ranges of the chunk's active classes. A lane looks at kPack
// connections at a time, which divides the fan-in. weights: those of the chunk. add: to what earlier chunks
// left.
template <int kPack, typename T, typename Id>
__global__ void __launch_bounds__(kSumThreads, 1)
    AddToInputs(FanInLayer<T, Id> layer, const T* weights, FanInBatch batch, GradientChunk chunk, bool add,
                InputSums to) {
  __shared__ PendingLists pending;
  float* sums = DynamicShared<float>();
  const int lane = Lane(), warp = Warp(), width = batch.width;
  const int64_t range = blockIdx.z, fan_in = layer.fan_in, first = blockIdx.x * to.slice;
  const int64_t floats = max(int64_t{0}, min(to.slice, batch.inputs - first)) * width;
  const uint32_t inputs = static_cast<uint32_t>(floats / width);
  const Id* indices = layer.indices + chunk.first * fan_in;
  Pending* list = pending.lists[warp];
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const float* gradients = chunk.values + block * chunk.rows * width;
    const int32_t* active = chunk.active + block * chunk.rows;
    const int64_t rows = chunk.ActiveRows(block), each = (rows + to.ranges - 1) / to.ranges;
    const int64_t begin = min(range * each, rows) * fan_in, end = min(range * each + each, rows) * fan_in;
    float* all_sums = to.sums + range * to.floats + (block * batch.inputs + first) * width;
    for (int64_t i = threadIdx.x; i < floats; i += kSumThreads) sums[i] = add ? all_sums[i] : 0.f;
    int64_t base = begin + warp * 32 * kPack;
    auto own = LoadPack<kPack>(indices, active, fan_in, base + lane * kPack, end), next = own;
    unsigned mine = 0;  // of `own`, that are in the slice and not yet in the list
    for (bool left = true; left;) {
      int count = 0;
      while (count <= kPending - 32) {
        if (!__any_sync(kAll, mine != 0)) {
          if (base >= end) break;
          const int64_t e = base + lane * kPack;
          own = next;
          base += kSumThreads * kPack;
          next = LoadPack<kPack>(indices, active, fan_in, base + lane * kPack, end);
#pragma unroll
          for (int i = 0; i < kPack; ++i) {
            if (e < end && static_cast<uint32_t>(own.index.x[i]) - static_cast<uint32_t>(first) < inputs)
              mine |= 1u << i;
          }
          continue;
        }
        Pending one{};  // one of each lane
        const bool has = mine != 0;
        if (has) {
          const int64_t at = own.at + __ffs(mine) - 1;
          mine &= mine - 1;
          one = {static_cast<int32_t>(static_cast<int64_t>(indices[at]) - first), own.row,
                 GpuToFloat(weights[at])};
        }
        const unsigned all = __ballot_sync(kAll, has);
        if (has) list[count + __popc(all & ((1u << lane) - 1))] = one;
        count += __popc(all);
      }
      if (lane == 0) pending.counts[warp] = count;
      left = __syncthreads_or(base < end || mine != 0) != 0;  // the lists are written
      for (int w = 0; w < kSumWarps; ++w)
        AddOwned(pending.lists[w], pending.counts[w], gradients, width, sums);
      __syncthreads();  // and have been read
    }
    // Those that this thread sets for the next block.
    for (int64_t i = threadIdx.x; i < floats; i += kSumThreads) all_sums[i] = sums[i];
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
