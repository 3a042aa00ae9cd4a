// Private to the .cu files of fan_in: draws different inputs for a class, as fan_in_sampling.h does. One
// thread works on one class; what the threads of a warp read together is adjacent in memory.
#ifndef LARGEOUT_FAN_IN_FAN_IN_SAMPLING_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_SAMPLING_CUH_

#include "common/arena.h"
#include "fan_in/fan_in_random.h"
#include "fan_in/cuda/fan_in_row.cuh"

namespace largeout {
namespace fan_in_gpu {

// One array of a thread: places are `stride` apart.
template <typename X>
struct Places {
  X* data;
  int64_t stride;
  __device__ X& operator[](int64_t i) const { return data[i * stride]; }
};

// Memory of `threads` threads, each for a class at a time with fan_in connections and up to `count` new ones.
struct DrawMemory {
  DrawMemory(int64_t rows, int64_t fan_in, int64_t count, int64_t inputs, int num_slots, Arena* arena)
      : most_free(std::min(inputs, 4 * (fan_in + count))) {
    constexpr int64_t kBytes = int64_t{256} << 20, kMostThreads = 1 << 16;
    const int64_t each = 4 * (2 * fan_in + count + most_free) + 8 * fan_in + most_free / 8 + 8;
    threads = std::min({rows, kMostThreads, std::max<int64_t>(kThreads, kBytes / each)});
    verdict = arena->Take<Verdict>(1);
    slots = arena->Take<float*>(num_slots);
    keys = arena->Take<uint64_t>(threads * fan_in);
    members = arena->Take<int32_t>(threads * (fan_in + count));
    grown = arena->Take<int32_t>(threads * fan_in);
    free = arena->Take<int32_t>(threads * most_free);
    bits = arena->Take<uint32_t>(threads * (most_free / 32 + 1));
  }
  int64_t most_free, threads;
  Verdict* verdict;
  float** slots;
  uint64_t* keys;
  int32_t *members, *grown, *free;
  uint32_t* bits;
};

// The inputs of one class that are taken.
class InputSetCuda {
 public:
  __device__ InputSetCuda(const DrawMemory& memory, int64_t thread, int64_t inputs)
      : inputs_(inputs),
        members_{memory.members + thread, memory.threads},
        free_{memory.free + thread, memory.threads},
        bits_{memory.bits + thread, memory.threads} {}

  // False if it was there.
  __device__ bool Add(int64_t input) {
    for (int64_t i = 0; i < size_; ++i) {
      if (members_[i] == input) return false;
    }
    members_[size_++] = static_cast<int32_t>(input);
    return true;
  }
  __device__ void Clear() { size_ = 0; }
  __device__ int64_t size() const { return size_; }

  // As InputSet::Draw: put(n, input) for n = 0 .. count - 1.
  template <typename Put>
  __device__ void Draw(const FanInStream& stream, int64_t count, Put put) {
    if (inputs_ <= 4 * (size_ + count)) {  // few are free: shuffle those
      const int64_t free = ListFree();
      for (int64_t n = 0; n < count; ++n) {
        const int64_t with = n + stream.Below(n, free - n);
        const int32_t input = free_[with];
        free_[with] = free_[n];
        put(n, input);
      }
      return;
    }
    for (int64_t n = 0, draw = 0; n < count; ++draw) {  // most are free: draw until one is
      const int64_t input = stream.Below(draw, inputs_);
      if (Add(input)) put(n++, static_cast<int32_t>(input));
    }
  }

 private:
  __device__ int64_t ListFree() {
    for (int64_t word = 0; word <= inputs_ / 32; ++word) bits_[word] = 0;
    for (int64_t i = 0; i < size_; ++i) bits_[members_[i] / 32] |= 1u << (members_[i] % 32);
    int64_t free = 0;
    for (int64_t i = 0; i < inputs_; ++i) {
      if ((bits_[i / 32] >> (i % 32) & 1) == 0) free_[free++] = static_cast<int32_t>(i);
    }
    return free;
  }

  const int64_t inputs_;
  Places<int32_t> members_, free_;
  Places<uint32_t> bits_;
  int64_t size_ = 0;
};

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_SAMPLING_CUH_
