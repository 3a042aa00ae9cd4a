// In place of cuda/fan_in_tuning.cuh in emulated programs: a few thousand connections make ranges of several
// classes and inputs of several pieces, and words are of both kinds.
#ifndef LARGEOUT_FAN_IN_TEST_TUNING_CUH_
#define LARGEOUT_FAN_IN_TEST_TUNING_CUH_

#include <cstdint>

namespace largeout {

struct FanInTuning {
  static constexpr int64_t kFusedWarps = 40;
  static constexpr int64_t kSumBlocks = 5;
  static constexpr int64_t kWholeInputs = 64;
  static constexpr int kPiece = 32;
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_TEST_TUNING_CUH_
