#include "common/test/cuda_testing.cuh"
#include "embedding_update/cuda/embedding_update_gpu.h"
#include "embedding_update/test/embedding_update_cases.h"
#include "row_update/cuda/row_update_gpu.h"

namespace largeout {

LARGEOUT_EMBEDDING_UPDATE_CASES(EmbeddingUpdateGpu, EmbeddingGpu, RowUpdateGpu)

}  // namespace largeout
