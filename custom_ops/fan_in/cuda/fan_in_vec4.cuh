// Private to the .cu files of fan_in: inputs as a warp reads them, 4 a lane: 16 bytes, or 8 of bfloat16.
#ifndef LARGEOUT_FAN_IN_FAN_IN_VEC4_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_VEC4_CUH_

#include <type_traits>

#include "common/cuda/cuda.h"

namespace largeout {
namespace fan_in_gpu {

constexpr unsigned kAll = 0xffffffffu;

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x) / 32; }

// A connection as all lanes of a warp read it, from shared memory.
struct Connection {
  int32_t input;
  float weight;
};

// Inputs [blocks, inputs, width] of either type, as `Indices` (fan_in_row.cuh) are of either width.
class InputBlocks {
 public:
  // One of them is null.
  InputBlocks(const float* wide, const bfloat16* narrow)
      : at_(narrow == nullptr ? static_cast<const void*>(wide) : narrow), narrow_(narrow != nullptr) {}

  __host__ __device__ InputBlocks operator+(int64_t values) const {
    const int64_t size = narrow_ ? sizeof(bfloat16) : sizeof(float);
    return {static_cast<const char*>(at_) + values * size, narrow_};
  }
  // Calls with(blocks), a pointer of their type.
  template <typename With>
  __device__ __forceinline__ void Call(const With& with) const {
    if (narrow_) {
      with(static_cast<const bfloat16*>(at_));
    } else {
      with(static_cast<const float*>(at_));
    }
  }

 private:
  __host__ __device__ InputBlocks(const void* at, bool narrow) : at_(at), narrow_(narrow) {}

  const void* at_;
  bool narrow_;
};

__device__ __forceinline__ float4 ToFloat4(const float4& v) { return v; }
// Of 4 bfloat16.
__device__ __forceinline__ float4 ToFloat4(const uint2& v) {
  return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                     __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
}

// Reads inputs by a warp, 4 for each lane: the lanes of a group have the examples of one connection among
// them. Of 32 connections a group has as many as it has lanes, those whose numbers are these lanes'.
class Vec4Lanes {
 public:
  static constexpr int kLoads = 8;  // of a group; in blocks of 16 examples 4

  __device__ explicit Vec4Lanes(int width)
      : stride_(width * sizeof(float)),
        lanes_(width / 4),
        first_(Lane() & -lanes_),
        part_(Lane() & (lanes_ - 1)) {}

  // Reads the inputs of `count` connections from a block; zeros beyond.
  template <typename X>
  __device__ __forceinline__ void Read(const Connection* connections, int count, const X* block,
                                       float4 (&x)[kLoads]) const {
    const int own = Own(count);
    std::decay_t<decltype(Row(block, 0))> read[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      read[i] = {};
      if (i < own) read[i] = Row(block, static_cast<uint32_t>(connections[first_ + i].input));
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) x[i] = ToFloat4(read[i]);
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

  // This lane's part of a row of a block [rows, width].
  __device__ __forceinline__ const float4& Row(const float* block, uint32_t row) const {
    return RowAs<float4>(block, row);
  }
  __device__ __forceinline__ const uint2& Row(const bfloat16* block, uint32_t row) const {
    return RowAs<uint2>(block, row);
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
  // Four: 4 examples in memory.
  template <typename Four>
  __device__ __forceinline__ const Four& RowAs(const void* block, uint32_t row) const {
    constexpr uint32_t kShare = sizeof(float4) / sizeof(Four);
    const char* from = static_cast<const char*>(block) + part_ * sizeof(Four);
    return *reinterpret_cast<const Four*>(from + uint64_t{row} * (stride_ / kShare));
  }

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

  // The number of connections, of `count`, that this group has.
  __device__ __forceinline__ int Own(int count) const { return min(count - first_, lanes_); }

  uint32_t stride_;  // bytes of a connection's examples in float
  int lanes_, first_, part_;
};

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_VEC4_CUH_
