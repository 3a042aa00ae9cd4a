#include "common/test/cuda_testing.cuh"
#include "embedding/cuda/embedding_plan.h"
#include "embedding_update/embedding_update.h"
#include "embedding_update/test/embedding_update_cases.h"
#include "row_update/row_update.h"

namespace largeout {

LARGEOUT_EMBEDDING_UPDATE_CASES(EmbeddingUpdateGpu, EmbeddingGpu, RowUpdateGpu)

}  // namespace largeout
