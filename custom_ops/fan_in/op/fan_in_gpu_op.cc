// The GPU kernels of logits, top-k, losses and their gradients. Labels, and what decides on shapes or is read
// by the glue, are on the host.
#if LARGEOUT_CUDA
#include "common/op/tf_gpu_op.h"
#include "fan_in/fan_in.h"
#include "fan_in/op/fan_in_candidate_op.h"
#include "fan_in/op/fan_in_logits_op.h"
#include "fan_in/op/fan_in_loss_op.h"

namespace largeout {
namespace {

#define LARGEOUT_LABELS \
  .HostMemory("labels").HostMemory("row_splits").HostMemory("label_weights").HostMemory("classes")
#define LARGEOUT_REGISTER(name, Kernel, T, Id, host)                              \
  REGISTER_KERNEL_BUILDER(Name(name)                                              \
                              .Device(tensorflow::DEVICE_GPU)                     \
                              .HostMemory("weights")                              \
                              .HostMemory("indices")                              \
                              .HostMemory("bias") host.TypeConstraint<T>("dtype") \
                              .TypeConstraint<Id>("Tindices"),                    \
                          Kernel<FanInGpu, T, Id>)
#define LARGEOUT_UPDATE .HostMemory("slots").HostMemory("seed")
#define LARGEOUT_TYPES(T, Id)                                                                   \
  LARGEOUT_REGISTER("Largeout>FanInLogits", FanInLogitsOp, T, Id, );                            \
  LARGEOUT_REGISTER("Largeout>FanInLogitsGrad", FanInLogitsGradOp, T, Id, );                    \
  LARGEOUT_REGISTER("Largeout>FanInTopK", FanInTopKOp, T, Id, .HostMemory("k"));                \
  LARGEOUT_REGISTER("Largeout>FanInLoss", FanInLossOp, T, Id, LARGEOUT_LABELS LARGEOUT_UPDATE); \
  LARGEOUT_REGISTER("Largeout>FanInLossGrad", FanInLossGradOp, T, Id, LARGEOUT_LABELS);         \
  LARGEOUT_REGISTER("Largeout>FanInStep", FanInStepOp, T, Id, LARGEOUT_LABELS LARGEOUT_UPDATE); \
  LARGEOUT_REGISTER("Largeout>FanInCandidateGrad", FanInCandidateGradOp, T, Id,                 \
                    LARGEOUT_LABELS.HostMemory("first_row"))
LARGEOUT_TYPES(float, uint16_t);
LARGEOUT_TYPES(float, uint32_t);
LARGEOUT_TYPES(Eigen::bfloat16, uint16_t);
LARGEOUT_TYPES(Eigen::bfloat16, uint32_t);

}  // namespace
}  // namespace largeout
#endif  // LARGEOUT_CUDA
