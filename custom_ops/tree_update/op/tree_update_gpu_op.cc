// The GPU kernels of TreeSoftmaxUpdate. Handles of variables and the arrays of the tree are on the host.
#if LARGEOUT_CUDA
#include "tree_softmax/cuda/tree_softmax_plan.h"
#include "tree_softmax/op/tree_softmax_gpu_op.h"
#include "tree_update/op/tree_update_kernel_op.h"
#include "tree_update/tree_update.h"

namespace largeout {
namespace {

#define LARGEOUT_ON_HOST        \
  .HostMemory("variable")       \
      .HostMemory("slots")      \
      .HostMemory("bias")       \
      .HostMemory("node_start") \
      .HostMemory("node_parent")
LARGEOUT_TREE_UPDATE_TYPES(DEVICE_GPU, TreeUpdateGpu, LARGEOUT_ON_HOST);
#undef LARGEOUT_ON_HOST

}  // namespace
}  // namespace largeout
#endif  // LARGEOUT_CUDA
