#include "common/test/cuda_testing.cuh"
#include "tree_softmax/cuda/tree_softmax_plan.h"
#include "tree_softmax/test/tree_softmax_topk_cases.h"

namespace largeout {
LARGEOUT_TREE_TOPK_CASES(TreeSoftmaxGpu)
}  // namespace largeout
