#include "tree_update/tree_update.h"

#include "row_update/row_update.h"
#include "tree_update/test/tree_update_cases.h"

namespace largeout {

LARGEOUT_TREE_UPDATE_CASES(TreeUpdateCpu, TreeSoftmaxCpu, RowUpdateCpu)

}  // namespace largeout
