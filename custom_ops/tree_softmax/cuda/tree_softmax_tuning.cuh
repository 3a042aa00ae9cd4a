// The sizes into which kernels cut a batch, for a GPU of 132 multiprocessors. They decide the time, the
// scratch memory and how sums are rounded, and nothing else.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TUNING_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TUNING_CUH_

#include "common/cuda/gemm/tile_shape.cuh"

namespace largeout {

struct TreeTuning {
  // The smallest root whose products are those of cuBLASLt. Smaller ones take less time in the kernels of
  // wide nodes, which launch less.
  static constexpr int64_t kLeastRootPairs = 256, kLeastRootChildren = 1024;
  // Logits of the root that top-k has in memory at once.
  static constexpr int64_t kRootLogits = 64 << 20;
  // Thread blocks that a launch of the loss should have.
  static constexpr int64_t kLogitBlocks = 4096;
  // Pieces that a launch of d_hidden should have, and the fewest children of one, a multiple of kTileK.
  static constexpr int64_t kHiddenPieces = 132 * kTileBlocks * 2, kLeastRange = 512;
  // Runs of groups. Each block adds up the runs before its own.
  static constexpr int64_t kMostRuns = 512;
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TUNING_CUH_
