// Private to the .cu files of fan_in: the labels that a warp meets on its way through the classes.
#ifndef LARGEOUT_FAN_IN_FAN_IN_LABELS_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_LABELS_CUH_

#include "fan_in/cuda/fan_in_row.cuh"
#include "fan_in/fan_in_terms.h"

namespace largeout {
namespace fan_in_gpu {

// The labels of a block from row `row` on. The same for all lanes of a warp.
class LabelCursor {
 public:
  __device__ LabelCursor(const FanInPositivesCuda& positives, int64_t block, int64_t row)
      : sorted_(positives.sorted) {
    if (positives.block_start == nullptr) return;
    at_ = positives.block_start[block], end_ = positives.block_start[block + 1];
    int64_t after = end_;
    while (at_ < after) {
      const int64_t middle = (at_ + after) / 2;
      if (sorted_[middle].row < row) {
        at_ = middle + 1;
      } else {
        after = middle;
      }
    }
  }
  // Goes on where another one, of the same block, was: At().
  __device__ LabelCursor(const FanInPositivesCuda& positives, int64_t block, const int64_t* at)
      : sorted_(positives.sorted) {
    if (positives.block_start != nullptr) at_ = *at, end_ = positives.block_start[block + 1];
  }
  __device__ int64_t At() const { return at_; }
  // Whether `row` is a label of `example`, and its weight. Rows must ascend from call to call.
  __device__ bool Find(int64_t row, int64_t example, float* weight) {
    bool found = false;
    for (; at_ < end_ && sorted_[at_].row <= row; ++at_) {
      if (sorted_[at_].row == row && sorted_[at_].example == example)
        *weight = sorted_[at_].weight, found = true;
    }
    return found;
  }

 private:
  const FanInPositive* sorted_;
  int64_t at_ = 0, end_ = 0;
};

// max(0, x); NaN stays NaN.
__device__ __forceinline__ float Positive(float x) { return 0.f > x ? 0.f : x; }

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_LABELS_CUH_
