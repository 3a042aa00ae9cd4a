// Private to fan_in_backward.cu: the connections of a chunk as words of 64 bits, the keys of a sort by input.
//
// Up to 65,536 inputs a word holds all that a sum needs of its connection: from the top the input and the row
// in the chunk, 16 bits each, and the weight before the step. Beyond, it holds the input and the connection's
// place in the chunk, by which the weight is found. Connections of classes without a gradient are sorted too,
// with no row, so that the order of every sum depends on the connections alone.
#ifndef LARGEOUT_FAN_IN_FAN_IN_PACKED_KEYS_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_PACKED_KEYS_CUH_

#include "common/cuda/cuda.h"
#include "fan_in/cuda/fan_in_tuning.cuh"

namespace largeout {
namespace fan_in_gpu {

constexpr int64_t kWholeRows = 0xfff8;
static_assert(FanInTuning::kWholeInputs <= 0x10000, "words have 16 bits for an input");
constexpr uint32_t kNoRow = 0xffffffffu;

class PackedKeys {
 public:
  PackedKeys(int64_t inputs, int64_t fan_in)
      : inputs_(static_cast<uint32_t>(inputs)),
        fan_in_(static_cast<uint32_t>(fan_in)),
        bit_(inputs <= FanInTuning::kWholeInputs ? 48 : 32) {}

  // Whether words have weights and rows.
  __host__ __device__ bool Whole() const { return bit_ == 48; }
  // The lowest bit of inputs.
  int Bit() const { return bit_; }

  __device__ __forceinline__ uint64_t Of(uint32_t input, uint32_t row, uint32_t k, float weight) const {
    const uint64_t rest = Whole() ? uint64_t{row} << 32 | __float_as_uint(weight) : row * fan_in_ + k;
    return uint64_t{input} << bit_ | rest;
  }
  // Of a class without a gradient; the input may be out of range.
  __device__ __forceinline__ uint64_t Without(uint32_t input) const {
    return uint64_t{input < inputs_ ? input : 0} << bit_ | (Whole() ? uint64_t{0xffff} << 32 : kNoRow);
  }

  __device__ __forceinline__ uint32_t Inputs() const { return inputs_; }
  __device__ __forceinline__ uint32_t Input(uint64_t word) const {
    return static_cast<uint32_t>(word >> bit_);
  }
  // kNoRow: there is no gradient. kWhole: what Whole() says.
  template <bool kWhole>
  __device__ __forceinline__ uint32_t Row(uint64_t word) const {
    const uint32_t row = static_cast<uint32_t>(word >> 32) & 0xffffu, place = static_cast<uint32_t>(word);
    if (kWhole) return row == 0xffffu ? kNoRow : row;
    return place == kNoRow ? kNoRow : place / fan_in_;
  }
  // weights: those of the chunk, for words without.
  template <bool kWhole, typename T>
  __device__ __forceinline__ float Weight(uint64_t word, const T* weights) const {
    const uint32_t low = static_cast<uint32_t>(word);
    return kWhole ? __uint_as_float(low) : GpuToFloat(weights[low]);
  }

 private:
  uint32_t inputs_, fan_in_;
  int bit_;
};

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_PACKED_KEYS_CUH_
