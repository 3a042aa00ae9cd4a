// The GPU kernels of full_softmax.
#if LARGEOUT_CUDA
#include "common/op/tf_gpu_op.h"
#include "full_softmax/full_softmax.h"
#include "full_softmax/op/full_softmax_kernel_op.h"

namespace largeout {

// A variable's handle is in host memory, a tensor on the device.
#define LARGEOUT_HANDLES \
  .HostMemory("table").HostMemory("bias").TypeConstraint<tensorflow::ResourceHandle>("Ttable")
#define LARGEOUT_TENSORS(T) .TypeConstraint<T>("Ttable")
#define LARGEOUT_REGISTER(T, Thidden)        \
  LARGEOUT_REGISTER_IDS(T, Thidden, int32_t) \
  LARGEOUT_REGISTER_IDS(T, Thidden, int64_t)
#define LARGEOUT_REGISTER_IDS(T, Thidden, Tids)             \
  LARGEOUT_REGISTER_OPS(T, Thidden, Tids, LARGEOUT_HANDLES) \
  LARGEOUT_REGISTER_OPS(T, Thidden, Tids, LARGEOUT_TENSORS(T))
#define LARGEOUT_REGISTER_OPS(T, Thidden, Tids, TABLE)                                     \
  LARGEOUT_REGISTER_KERNEL("Largeout>FullSoftmax", FullSoftmaxOp, T, Thidden, Tids, TABLE) \
  LARGEOUT_REGISTER_KERNEL("Largeout>FullSoftmaxGrad", FullSoftmaxGradOp, T, Thidden, Tids, TABLE)
#define LARGEOUT_REGISTER_KERNEL(name, Kernel, T, Thidden, Tids, TABLE) \
  REGISTER_KERNEL_BUILDER(Name(name)                                    \
                              .Device(tensorflow::DEVICE_GPU)           \
                              .TypeConstraint<T>("dtype")               \
                              .TypeConstraint<Thidden>("Thidden")       \
                              .TypeConstraint<Tids>("Ttargets") TABLE,  \
                          Kernel<FullSoftmaxGpu, T, Thidden, Tids>);
LARGEOUT_REGISTER(float, float)
LARGEOUT_REGISTER(float, Eigen::bfloat16)
LARGEOUT_REGISTER(Eigen::bfloat16, float)
LARGEOUT_REGISTER(Eigen::bfloat16, Eigen::bfloat16)

}  // namespace largeout
#endif  // LARGEOUT_CUDA
