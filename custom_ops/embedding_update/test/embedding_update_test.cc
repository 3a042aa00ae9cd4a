#include "embedding_update/embedding_update.h"

#include "embedding_update/test/embedding_update_cases.h"
#include "row_update/row_update.h"

namespace largeout {

LARGEOUT_EMBEDDING_UPDATE_CASES(EmbeddingUpdateCpu, EmbeddingCpu, RowUpdateCpu)
LARGEOUT_FUSED_CASE(EveryLevelInOnePass, EmbeddingUpdateCpu, EmbeddingCpu, RowUpdateCpu)

}  // namespace largeout
