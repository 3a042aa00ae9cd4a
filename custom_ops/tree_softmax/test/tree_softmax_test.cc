#include "tree_softmax/test/tree_softmax_cases.h"

namespace largeout {
LARGEOUT_TREE_SOFTMAX_CASES(TreeSoftmaxCpu)
}  // namespace largeout
