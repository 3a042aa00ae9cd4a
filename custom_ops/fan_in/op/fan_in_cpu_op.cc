// The CPU kernels of logits, top-k, losses and their gradients.
#include "fan_in/fan_in.h"
#include "fan_in/op/fan_in_candidate_op.h"
#include "fan_in/op/fan_in_logits_op.h"
#include "fan_in/op/fan_in_loss_op.h"

namespace largeout {
namespace {

// Kernel<FanInCpu, T, Id> as the CPU kernel of `name`, for all types.
#define LARGEOUT_FAN_IN_CPU_TYPES(name, Kernel, T, Id)                                                     \
  REGISTER_KERNEL_BUILDER(                                                                                 \
      Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("dtype").TypeConstraint<Id>("Tindices"), \
      Kernel<FanInCpu, T, Id>)
#define LARGEOUT_FAN_IN_CPU(name, Kernel)                             \
  LARGEOUT_FAN_IN_CPU_TYPES(name, Kernel, float, uint16_t);           \
  LARGEOUT_FAN_IN_CPU_TYPES(name, Kernel, float, uint32_t);           \
  LARGEOUT_FAN_IN_CPU_TYPES(name, Kernel, Eigen::bfloat16, uint16_t); \
  LARGEOUT_FAN_IN_CPU_TYPES(name, Kernel, Eigen::bfloat16, uint32_t)

LARGEOUT_FAN_IN_CPU("Largeout>FanInLogits", FanInLogitsOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInLogitsGrad", FanInLogitsGradOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInTopK", FanInTopKOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInLoss", FanInLossOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInLossGrad", FanInLossGradOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInStep", FanInStepOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInCandidateGrad", FanInCandidateGradOp);

}  // namespace
}  // namespace largeout
