// Private to the .cu files of fan_in: what a warp does with one class. A lane is an example of the block; in
// blocks of 16 examples what the upper lanes compute is not used. Inputs are read 4 examples a lane: 4 or 8
// connections by one load (fan_in_vec4.cuh).
#ifndef LARGEOUT_FAN_IN_FAN_IN_ROW_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_ROW_CUH_

#include <algorithm>

#include "common/cuda/cuda_warp.cuh"
#include "common/cuda/late_report.h"
#include "common/cuda/launch.cuh"
#include "fan_in/cuda/fan_in_vec4.cuh"
#include "fan_in/fan_in.h"

namespace largeout {
namespace fan_in_gpu {

constexpr int kThreads = 256, kWarps = kThreads / 32;

inline unsigned Blocks(int64_t n, int64_t each) { return static_cast<unsigned>((n + each - 1) / each); }

// Blocks of examples along y; where there are more, a thread block goes through several.
inline dim3 Grid(unsigned x, const FanInBatch& batch) {
  return dim3(x, GridStrideBlocks(batch.blocks, 65535));
}

// The first bad row of indices, and of candidates; all ones: none.
struct Verdict {
  unsigned long long row, candidate;
};

inline int ClearVerdict(Verdict* verdict, GpuStream stream) {
  return static_cast<int>(cudaMemsetAsync(verdict, 0xff, sizeof(Verdict), stream));
}
// Waits for the stream.
inline int ReadVerdict(const Verdict* verdict, GpuStream stream, int64_t* row, int64_t* candidate = nullptr) {
  Verdict found;
  const int error = CopyToHostCuda(verdict, sizeof(found), &found, stream);
  if (error != 0) return error;
  *row = static_cast<int64_t>(found.row);  // all ones is -1
  if (candidate != nullptr) *candidate = static_cast<int64_t>(found.candidate);
  return 0;
}

// Whether an earlier call has left a finding: its row.
inline bool FoundBefore(LateReport* late, int64_t* row) {
  LateFinding found;
  if (late == nullptr || !late->Take(&found)) return false;
  *row = found.position;
  return true;
}

// The end of a launcher whose index of a class was bad or not: `late` null, it waits for the verdict. Else
// nothing waits, and the finding goes there. limit: what indices are below.
int EndWithVerdict(const Verdict* verdict, int64_t limit, GpuStream stream, LateReport* late, int64_t* row);

__device__ __forceinline__ void Found(unsigned long long* first, int64_t row) {
  if (Lane() == 0) atomicMin(first, static_cast<unsigned long long>(row));
}

template <typename Id>
__device__ __forceinline__ bool InRange(Id index, int64_t inputs) {
  return static_cast<int64_t>(static_cast<uint32_t>(index)) < inputs;
}

// Indices of either width, for kernels that there is one of for each rule of an optimizer: one for each width
// too would double the time that compiling them takes.
class Indices {
 public:
  template <typename Id>
  __host__ __device__ explicit Indices(const Id* at) : at_(at), wide_(sizeof(Id) == 4) {
    static_assert(sizeof(Id) == 2 || sizeof(Id) == 4, "indices have 16 or 32 bits");
  }
  __device__ uint32_t operator[](int64_t i) const {
    return wide_ ? static_cast<const uint32_t*>(at_)[i] : static_cast<const uint16_t*>(at_)[i];
  }

 private:
  const void* at_;
  bool wide_;
};

// The part of a row that a warp prefetches: the first connection of each lane, and the bias.
template <typename T, typename Id>
struct RowStart {
  Id index;
  T weight;
  float bias;
};

// Rows from `end` on have nothing.
template <typename T, typename Id>
__device__ __forceinline__ RowStart<T, Id> StartRow(const FanInLayer<T, Id>& layer, int64_t row,
                                                    int64_t end) {
  RowStart<T, Id> start{0, T(), 0.f};
  if (row >= end) return start;
  if (layer.bias != nullptr) start.bias = layer.bias[row];
  if (Lane() < layer.fan_in) {
    start.index = layer.indices[row * layer.fan_in + Lane()];
    start.weight = layer.weights[row * layer.fan_in + Lane()];
  }
  return start;
}

// The logit of a row for the example of this lane. False where an index is out of range. inputs: a block,
// [inputs, width]; stage: 32 of the warp's own.
template <typename T, typename Id>
__device__ __forceinline__ bool RowLogit(const FanInLayer<T, Id>& layer, int64_t row,
                                         const RowStart<T, Id>& start, const InputBlocks& inputs,
                                         const Vec4Lanes& vec4, Connection* stage, float* logit) {
  const int lane = Lane();
  Id index = start.index;
  T weight = start.weight;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int64_t first = 0; first < layer.fan_in; first += 32) {
    const int n = static_cast<int>(min(layer.fan_in - first, int64_t{32}));
    if (first > 0 && lane < n) {
      index = layer.indices[row * layer.fan_in + first + lane];
      weight = layer.weights[row * layer.fan_in + first + lane];
    }
    if (!__all_sync(kAll, lane >= n || InRange(index, layer.inputs))) return false;
    stage[lane] = {static_cast<int32_t>(index), GpuToFloat(weight)};
    __syncwarp();
    inputs.Call([&](const auto* at) {
      float4 x[Vec4Lanes::kLoads];
      vec4.Read(stage, n, at, x);
      vec4.AddProducts(stage, n, x, &sum);
    });
    __syncwarp();  // the stage has been read
  }
  *logit = start.bias + vec4.SumOfExample(sum);
  return true;
}

// Whether all of [first, first + n) are in range, for a warp.
__device__ __forceinline__ bool RowInRange(const Indices& indices, int64_t first, int64_t n, int64_t inputs) {
  bool good = true;
  for (int64_t k = Lane(); k < n; k += 32) good = good && InRange(indices[first + k], inputs);
  return __all_sync(kAll, good) != 0;
}

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_ROW_CUH_
