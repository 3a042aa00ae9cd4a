#include "common/test/cuda_testing.cuh"
#include "embedding/cuda/embedding_plan.h"
#include "embedding/test/embedding_cases.h"

namespace largeout {
LARGEOUT_EMBEDDING_CASES(EmbeddingGpu)
}  // namespace largeout
