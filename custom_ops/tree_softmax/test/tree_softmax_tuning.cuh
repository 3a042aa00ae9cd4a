// In place of cuda/tree_softmax_tuning.cuh in emulated programs: a few thousand elements go through every
// loop over runs, ranges and chunks several times.
#ifndef LARGEOUT_TREE_SOFTMAX_TEST_TUNING_CUH_
#define LARGEOUT_TREE_SOFTMAX_TEST_TUNING_CUH_

#include "common/cuda/gemm/tile_shape.cuh"

namespace largeout {

struct TreeTuning {
  static constexpr int64_t kLeastRootPairs = 16, kLeastRootChildren = 40;
  static constexpr int64_t kRootLogits = 100000;
  static constexpr int64_t kLogitBlocks = 6;
  static constexpr int64_t kHiddenPieces = 12, kLeastRange = 3 * kTileK;
  static constexpr int64_t kMostRuns = 3;
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TEST_TUNING_CUH_
