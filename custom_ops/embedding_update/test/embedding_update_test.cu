#include "common/test/cuda_testing.cuh"
#include "embedding/cuda/embedding_plan.h"
#include "embedding_update/embedding_update.h"
#include "embedding_update/test/embedding_update_cases.h"
#include "row_update/row_update.h"

#ifdef LARGEOUT_EMULATE_CUDA
#include "cuda_emulator/emulation.h"
#endif

namespace largeout {

LARGEOUT_EMBEDDING_UPDATE_CASES(EmbeddingUpdateGpu, EmbeddingGpu, RowUpdateGpu)

#ifdef LARGEOUT_EMULATE_CUDA
// A step is bound by launches where it is small: keys, groups; pieces of frequent rows, rows, frequent rows.
LARGEOUT_TEST(AStepIsFiveKernels) {
  const FusedProblem<float, int64_t> p({960, 3, 40, 16, false, Combiner::kSum}, UpdateRule::kAdagrad, 0.f, 1);
  const int64_t before = emulation::Launches();
  InOnePass<EmbeddingUpdateGpu>(p);
  CHECK_TRUE(emulation::Launches() - before == 5);
}
#endif

}  // namespace largeout
