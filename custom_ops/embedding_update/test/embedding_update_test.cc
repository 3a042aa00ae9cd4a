#include "embedding_update/embedding_update_cpu.h"
#include "embedding_update/test/embedding_update_cases.h"
#include "row_update/row_update_cpu.h"

namespace largeout {

LARGEOUT_EMBEDDING_UPDATE_CASES(EmbeddingUpdateCpu, EmbeddingCpu, RowUpdateCpu)
LARGEOUT_FUSED_CASE(EveryLevelInOnePass, EmbeddingUpdateCpu, EmbeddingCpu, RowUpdateCpu)

}  // namespace largeout
