// The sizes into which kernels cut a batch, for a GPU of 132 multiprocessors. They decide the time and
// nothing else.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_TUNING_CUH_
#define LARGEOUT_EMBEDDING_EMBEDDING_TUNING_CUH_

#include <cstdint>

namespace largeout {

struct EmbeddingTuning {
  // Threads that sum rows. Where there are rows for more, a team of threads takes more rows.
  static constexpr int64_t kSumThreads = 132 * 1024;
};

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_TUNING_CUH_
