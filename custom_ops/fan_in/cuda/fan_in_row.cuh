// Private to the .cu files of fan_in: what a warp does with one class. A lane is an example of the block; in
// blocks of 16 examples what the upper lanes compute is not used. Inputs are read 16 bytes a lane: 4 or 8
// connections by one load (Quads).
#ifndef LARGEOUT_FAN_IN_FAN_IN_ROW_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_ROW_CUH_

#include <algorithm>

#include "common/cuda/cuda_warp.cuh"
#include "common/cuda/launch.cuh"
#include "fan_in/cuda/fan_in_cuda.h"

namespace largeout {
namespace fan_in_gpu {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffffu;

inline unsigned Blocks(int64_t n, int64_t each) { return static_cast<unsigned>((n + each - 1) / each); }

// Blocks of examples along y; where there are more, a thread block goes through several.
inline dim3 Grid(unsigned x, const FanInBatch& batch) { return dim3(x, TurnBlocks(batch.blocks, 65535)); }

// The first bad row of indices, and of candidates; all ones: none.
struct Verdict {
  unsigned long long row, candidate;
};
static_assert(sizeof(Verdict) <= kFanInLogitsWorkspaceCuda, "a Verdict is all the memory logits need");

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

// The end of a launcher whose index of a class was bad or not: `late` null, it waits for the verdict. Else
// nothing waits, and the finding goes there. limit: what indices are below.
int EndWithVerdict(const Verdict* verdict, int64_t limit, GpuStream stream, LateReport* late, int64_t* row);

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x) / 32; }

__device__ __forceinline__ void Found(unsigned long long* first, int64_t row) {
  if (Lane() == 0) atomicMin(first, static_cast<unsigned long long>(row));
}

// A connection as all lanes of a warp read it, from shared memory.
struct Connection {
  int32_t input;
  float weight;
};

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

// How a warp reads inputs: the lanes of a group have the examples of one connection among them, 4 each. Of 32
// connections a group has as many as it has lanes, those whose numbers are these lanes'.
class Quads {
 public:
  static constexpr int kLoads = 8;  // of a group; in blocks of 16 examples 4

  __device__ explicit Quads(int width)
      : stride_(width * sizeof(float)),
        lanes_(width / 4),
        first_(Lane() & -lanes_),
        part_(Lane() & (lanes_ - 1)) {}

  // What `count` connections have of a block of inputs: zeros beyond.
  __device__ __forceinline__ void Read(const Connection* connections, int count, const float* block,
                                       float4 (&x)[kLoads]) const {
    const int own = Own(count);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      x[i] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (i < own) x[i] = Row(block, static_cast<uint32_t>(connections[first_ + i].input));
    }
  }

  // Adds weight * x of each connection.
  __device__ __forceinline__ void AddProducts(const Connection* connections, int count,
                                              const float4 (&x)[kLoads], float4* sum) const {
    const int own = Own(count);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      AddProduct(i < own ? connections[first_ + i].weight : 0.f, x[i], sum);
    }
  }
  __device__ __forceinline__ static void AddProduct(float w, const float4& x, float4* sum) {
    sum->x = fmaf(w, x.x, sum->x), sum->y = fmaf(w, x.y, sum->y);
    sum->z = fmaf(w, x.z, sum->z), sum->w = fmaf(w, x.w, sum->w);
  }

  // The value of the lane whose number is that of the connection of load i.
  template <typename V>
  __device__ __forceinline__ V OfLoad(V value, int i) const {
    return __shfl_sync(kAll, value, i, lanes_);
  }
  __device__ __forceinline__ int Lanes() const { return lanes_; }  // of a group
  __device__ __forceinline__ int Part() const { return part_; }    // of this lane in its group
  // The number of this lane's group among those of all warps of a launch along x.
  __device__ __forceinline__ int64_t Group() const {
    return (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) >> (lanes_ == 8 ? 3 : 2);
  }
  static int64_t GroupsOf(int64_t threads, int width) { return threads * 4 / width; }

  // What a row of a block [rows, width] has for this lane.
  __device__ __forceinline__ const float4& Row(const float* block, uint32_t row) const {
    const char* from = reinterpret_cast<const char*>(block) + part_ * sizeof(float4);
    return *reinterpret_cast<const float4*>(from + uint64_t{row} * stride_);
  }
  __device__ __forceinline__ float4& Row(float* block, uint32_t row) const {
    return const_cast<float4&>(Row(static_cast<const float*>(block), row));
  }

  // v summed over the groups: a lane is given that of its example.
  __device__ __forceinline__ float SumOfExample(const float4& v) const {
    const int lane = Lane(), example = lane & (4 * lanes_ - 1);
    const bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
    const float first = (upper ? v.z : v.x) + __shfl_xor_sync(kAll, upper ? v.x : v.z, 16);
    const float second = (upper ? v.w : v.y) + __shfl_xor_sync(kAll, upper ? v.y : v.w, 16);
    float sum = (odd ? second : first) + __shfl_xor_sync(kAll, odd ? first : second, 8);
    if (lanes_ == 4) sum += __shfl_xor_sync(kAll, sum, 4);
    return __shfl_sync(kAll, sum, (example & 3) << 3 | example >> 2);
  }

  // g of the 4 examples of this lane.
  __device__ __forceinline__ float4 OfExamples(float g) const {
    const int first = 4 * part_;
    return make_float4(__shfl_sync(kAll, g, first), __shfl_sync(kAll, g, first + 1),
                       __shfl_sync(kAll, g, first + 2), __shfl_sync(kAll, g, first + 3));
  }

  // Adds g * x of each connection, for the examples of this lane.
  __device__ __forceinline__ static void AddGradients(const float4& g, const float4 (&x)[kLoads],
                                                      float (&sums)[kLoads]) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      sums[i] = fmaf(g.x, x[i].x, sums[i]), sums[i] = fmaf(g.y, x[i].y, sums[i]);
      sums[i] = fmaf(g.z, x[i].z, sums[i]), sums[i] = fmaf(g.w, x[i].w, sums[i]);
    }
  }

  // The sums of all lanes of a group: lane k is given that of connection k.
  __device__ __forceinline__ float SumOfConnection(float (&sums)[kLoads]) const {
    if (lanes_ == 8) Halve<4>(sums);
    Halve<2>(sums);
    Halve<1>(sums);
    return sums[0];
  }

 private:
  // Adds the sums of the lane at this distance: each keeps one half of them.
  template <int kHalf>
  __device__ __forceinline__ static void Halve(float (&v)[kLoads]) {
    const bool upper = (Lane() & kHalf) != 0;
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
      const float other = __shfl_xor_sync(kAll, upper ? v[k] : v[k + kHalf], kHalf);
      v[k] = (upper ? v[k + kHalf] : v[k]) + other;
    }
  }

  // How many of `count` connections this group has.
  __device__ __forceinline__ int Own(int count) const { return min(count - first_, lanes_); }

  uint32_t stride_;  // bytes of a connection's examples
  int lanes_, first_, part_;
};

// What a warp can read of a row before its turn comes: the first connection of each lane, and the bias.
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
                                         const RowStart<T, Id>& start, const float* inputs,
                                         const Quads& quads, Connection* stage, float* logit) {
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
    float4 x[Quads::kLoads];
    quads.Read(stage, n, inputs, x);
    quads.AddProducts(stage, n, x, &sum);
    __syncwarp();  // the stage has been read
  }
  *logit = start.bias + quads.SumOfExample(sum);
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
