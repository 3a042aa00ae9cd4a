// The sizes into which kernels cut a batch, for a GPU of 132 multiprocessors. They decide the time, the
// scratch memory and how sums are rounded, and nothing else.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_TUNING_CUH_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_TUNING_CUH_

#include <cstdint>

namespace largeout {

struct SoftmaxTuning {
  // Thread blocks that a launch of the loss should have: tens for each multiprocessor.
  static constexpr int64_t kTermBlocks = 4096;
  // Floats that ranges of classes leave for all tokens of a chunk of the loss.
  static constexpr int64_t kPartialFloats = 16 << 20;
  // Logits of a chunk of the gradient, all of which are in memory, and its tokens.
  static constexpr int64_t kChunkLogits = 32 << 20, kMostTokens = 8192;
};

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_TUNING_CUH_
