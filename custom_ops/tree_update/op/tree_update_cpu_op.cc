// The CPU kernels of TreeSoftmaxUpdate.
#include "tree_update/op/tree_update_kernel_op.h"
#include "tree_update/tree_update.h"

namespace largeout {
namespace {

LARGEOUT_TREE_UPDATE_TYPES(DEVICE_CPU, TreeUpdateCpu, );

}  // namespace
}  // namespace largeout
