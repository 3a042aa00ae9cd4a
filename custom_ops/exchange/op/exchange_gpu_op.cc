// The GPU kernels of PartitionIds. offsets and cuts are on the host.
#if LARGEOUT_CUDA
#include "common/op/tf_gpu_op.h"
#include "exchange/exchange.h"
#include "exchange/op/exchange_kernel_op.h"

namespace largeout {
namespace {

#define LARGEOUT_REGISTER(Id)                                 \
  REGISTER_KERNEL_BUILDER(Name("Largeout>PartitionIds")       \
                              .Device(tensorflow::DEVICE_GPU) \
                              .HostMemory("offsets")          \
                              .HostMemory("cuts")             \
                              .TypeConstraint<Id>("Tids"),    \
                          PartitionIdsOp<ExchangeGpu, Id>)
LARGEOUT_REGISTER(int32_t);
LARGEOUT_REGISTER(int64_t);
#undef LARGEOUT_REGISTER

}  // namespace
}  // namespace largeout
#endif  // LARGEOUT_CUDA
