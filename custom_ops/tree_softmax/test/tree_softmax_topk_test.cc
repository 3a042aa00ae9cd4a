#include "tree_softmax/test/tree_softmax_topk_cases.h"

namespace largeout {
LARGEOUT_TREE_TOPK_CASES(TreeSoftmaxCpu)
}  // namespace largeout
