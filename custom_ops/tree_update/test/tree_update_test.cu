#include "common/test/cuda_testing.cuh"
#include "row_update/row_update.h"
#include "tree_softmax/cuda/tree_softmax_plan.h"
#include "tree_update/test/tree_update_cases.h"
#include "tree_update/tree_update.h"

#ifdef LARGEOUT_EMULATE_CUDA
#include "cuda_emulator/emulation.h"
#endif

namespace largeout {

LARGEOUT_TREE_UPDATE_CASES(TreeUpdateGpu, TreeSoftmaxGpu, RowUpdateGpu)

#ifdef LARGEOUT_EMULATE_CUDA
LARGEOUT_TEST(AStepIsAKernelMoreThanItsGradient) {
  Random random(1);
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kLazyAdam}) {
    const TreeStepProblem<float> s(Problem<float>(RandomTree(252, 40, &random), 64, 41, 1), rule, 0.f, 1);
    int64_t before = emulation::Launches();
    Step<TreeSoftmaxGpu>(s.p, -1);
    const int64_t of_gradient = emulation::Launches() - before;
    before = emulation::Launches();
    InOnePass<TreeUpdateGpu>(s, -1);
    CHECK_TRUE(emulation::Launches() - before == of_gradient + 1);
  }
}
#endif

}  // namespace largeout
