// The GPU kernels of tree_softmax. The arrays of the tree are on the host, as TensorFlow keeps int32
// variables.
#if LARGEOUT_CUDA
#include "tree_softmax/op/tree_softmax_gpu_op.h"

#include "tree_softmax/cuda/tree_softmax_plan.h"
#include "tree_softmax/op/tree_softmax_loss_op.h"
#include "tree_softmax/op/tree_softmax_topk_op.h"

namespace largeout {

// A variable's handle is in host memory, a tensor on the device.
#define LARGEOUT_HANDLES \
  .HostMemory("table").HostMemory("bias").TypeConstraint<tensorflow::ResourceHandle>("Ttable")
#define LARGEOUT_TENSORS(T) .TypeConstraint<T>("Ttable")
#define LARGEOUT_REGISTER(T, Thidden)                     \
  LARGEOUT_REGISTER_GRAD(T, Thidden, LARGEOUT_HANDLES)    \
  LARGEOUT_REGISTER_GRAD(T, Thidden, LARGEOUT_TENSORS(T)) \
  LARGEOUT_REGISTER_IDS(T, Thidden, int32_t)              \
  LARGEOUT_REGISTER_IDS(T, Thidden, int64_t)
#define LARGEOUT_REGISTER_GRAD(T, Thidden, TABLE)                        \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeSoftmaxGrad")               \
                              .Device(tensorflow::DEVICE_GPU)            \
                              .HostMemory("node_start")                  \
                              .HostMemory("node_parent")                 \
                              .TypeConstraint<T>("dtype")                \
                              .TypeConstraint<Thidden>("Thidden") TABLE, \
                          TreeSoftmaxGradOp<TreeSoftmaxGpu, T, Thidden>);
#define LARGEOUT_REGISTER_IDS(T, Thidden, Tids)                   \
  LARGEOUT_REGISTER_LOSS(T, Thidden, Tids, LARGEOUT_HANDLES)      \
  LARGEOUT_REGISTER_LOSS(T, Thidden, Tids, LARGEOUT_TENSORS(T))   \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeTopK")               \
                              .Device(tensorflow::DEVICE_GPU)     \
                              .HostMemory("k")                    \
                              .HostMemory("table")                \
                              .HostMemory("bias")                 \
                              .HostMemory("node_start")           \
                              .HostMemory("row_child")            \
                              .TypeConstraint<T>("dtype")         \
                              .TypeConstraint<Thidden>("Thidden") \
                              .TypeConstraint<Tids>("out_type"),  \
                          TreeTopKOp<TreeSoftmaxGpu, T, Thidden, Tids>);
#define LARGEOUT_REGISTER_LOSS(T, Thidden, Tids, TABLE)                \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeSoftmaxLoss")             \
                              .Device(tensorflow::DEVICE_GPU)          \
                              .HostMemory("class_row")                 \
                              .HostMemory("node_start")                \
                              .HostMemory("node_row")                  \
                              .HostMemory("node_parent")               \
                              .HostMemory("row_hint")                  \
                              .TypeConstraint<T>("dtype")              \
                              .TypeConstraint<Thidden>("Thidden")      \
                              .TypeConstraint<Tids>("Ttargets") TABLE, \
                          TreeSoftmaxLossOp<TreeSoftmaxGpu, T, Thidden, Tids>);
LARGEOUT_REGISTER(float, float)
LARGEOUT_REGISTER(float, Eigen::bfloat16)
LARGEOUT_REGISTER(Eigen::bfloat16, float)
LARGEOUT_REGISTER(Eigen::bfloat16, Eigen::bfloat16)

}  // namespace largeout
#endif  // LARGEOUT_CUDA
