// In place of cuda/embedding_tuning.cuh in emulated programs: a few hundred rows give a team as many as it
// has lanes.
#ifndef LARGEOUT_EMBEDDING_TEST_TUNING_CUH_
#define LARGEOUT_EMBEDDING_TEST_TUNING_CUH_

#include <cstdint>

namespace largeout {

struct EmbeddingTuning {
  static constexpr int64_t kSumThreads = 256;
};

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_TEST_TUNING_CUH_
