// The CPU kernels of full_softmax.
#include "full_softmax/full_softmax.h"
#include "full_softmax/op/full_softmax_kernel_op.h"

namespace largeout {

#define LARGEOUT_REGISTER(T, Thidden)         \
  LARGEOUT_REGISTER_IDS(T, Thidden, int32_t); \
  LARGEOUT_REGISTER_IDS(T, Thidden, int64_t)
#define LARGEOUT_REGISTER_IDS(T, Thidden, Tids)                                      \
  LARGEOUT_REGISTER_KERNEL(T, Thidden, Tids, "Largeout>FullSoftmax", FullSoftmaxOp); \
  LARGEOUT_REGISTER_KERNEL(T, Thidden, Tids, "Largeout>FullSoftmaxGrad", FullSoftmaxGradOp)
#define LARGEOUT_REGISTER_KERNEL(T, Thidden, Tids, name, Kernel)  \
  REGISTER_KERNEL_BUILDER(Name(name)                              \
                              .Device(tensorflow::DEVICE_CPU)     \
                              .TypeConstraint<T>("dtype")         \
                              .TypeConstraint<Thidden>("Thidden") \
                              .TypeConstraint<Tids>("Ttargets"),  \
                          Kernel<FullSoftmaxCpu, T, Thidden, Tids>)
LARGEOUT_REGISTER(float, float);
LARGEOUT_REGISTER(float, Eigen::bfloat16);
LARGEOUT_REGISTER(Eigen::bfloat16, float);
LARGEOUT_REGISTER(Eigen::bfloat16, Eigen::bfloat16);

}  // namespace largeout
