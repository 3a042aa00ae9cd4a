// In place of cuda/full_softmax_tuning.cuh in emulated programs: a few thousand elements go through every
// loop over ranges and chunks several times.
#ifndef LARGEOUT_FULL_SOFTMAX_TEST_TUNING_CUH_
#define LARGEOUT_FULL_SOFTMAX_TEST_TUNING_CUH_

#include <cstdint>

namespace largeout {

struct SoftmaxTuning {
  static constexpr int64_t kTermBlocks = 6;
  static constexpr int64_t kPartialFloats = 1 << 11;
  static constexpr int64_t kChunkLogits = 1 << 18, kMostTokens = 512;
};

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_TEST_TUNING_CUH_
