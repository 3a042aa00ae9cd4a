#include "common/test/cuda_testing.cuh"
#include "row_update/row_update.h"
#include "tree_softmax/cuda/tree_softmax_plan.h"
#include "tree_update/test/tree_update_cases.h"
#include "tree_update/tree_update.h"

namespace largeout {

LARGEOUT_TREE_UPDATE_CASES(TreeUpdateGpu, TreeSoftmaxGpu, RowUpdateGpu)

}  // namespace largeout
