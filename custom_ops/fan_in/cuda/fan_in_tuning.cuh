// The sizes into which the kernels of the backward pass cut a batch, for a GPU of 132 multiprocessors. They
// decide the time, the scratch memory and how sums are rounded, and nothing else.
#ifndef LARGEOUT_FAN_IN_FAN_IN_TUNING_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_TUNING_CUH_

#include <cstdint>

namespace largeout {

struct FanInTuning {
  // Warps of the fused step: each has a range of the classes. 24 for each multiprocessor.
  static constexpr int64_t kFusedWarps = 132 * 24;
  // Thread blocks of the fused step with sums in shared memory. Two for each multiprocessor.
  static constexpr int64_t kSumBlocks = 132 * 2;
  // Inputs up to which the words that are sorted hold weights. They have 16 bits for the input.
  static constexpr int64_t kWholeInputs = 0x10000;
  // Sorted connections that a group of lanes sums: a multiple of 8.
  static constexpr int kPiece = 64;
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_TUNING_CUH_
