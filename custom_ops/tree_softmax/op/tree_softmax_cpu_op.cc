// The CPU kernels of tree_softmax.
#include "tree_softmax/op/tree_softmax_loss_op.h"
#include "tree_softmax/op/tree_softmax_topk_op.h"
#include "tree_softmax/tree_softmax.h"

namespace largeout {

#define LARGEOUT_REGISTER(T, Thidden)                                     \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeSoftmaxGrad")                \
                              .Device(tensorflow::DEVICE_CPU)             \
                              .TypeConstraint<T>("dtype")                 \
                              .TypeConstraint<Thidden>("Thidden"),        \
                          TreeSoftmaxGradOp<TreeSoftmaxCpu, T, Thidden>); \
  LARGEOUT_REGISTER_IDS(T, Thidden, int32_t)                              \
  LARGEOUT_REGISTER_IDS(T, Thidden, int64_t)
#define LARGEOUT_REGISTER_IDS(T, Thidden, Tids)                                 \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeSoftmaxLoss")                      \
                              .Device(tensorflow::DEVICE_CPU)                   \
                              .TypeConstraint<T>("dtype")                       \
                              .TypeConstraint<Thidden>("Thidden")               \
                              .TypeConstraint<Tids>("Ttargets"),                \
                          TreeSoftmaxLossOp<TreeSoftmaxCpu, T, Thidden, Tids>); \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeTopK")                             \
                              .Device(tensorflow::DEVICE_CPU)                   \
                              .TypeConstraint<T>("dtype")                       \
                              .TypeConstraint<Thidden>("Thidden")               \
                              .TypeConstraint<Tids>("out_type"),                \
                          TreeTopKOp<TreeSoftmaxCpu, T, Thidden, Tids>);
LARGEOUT_REGISTER(float, float)
LARGEOUT_REGISTER(float, Eigen::bfloat16)
LARGEOUT_REGISTER(Eigen::bfloat16, float)
LARGEOUT_REGISTER(Eigen::bfloat16, Eigen::bfloat16)

}  // namespace largeout
