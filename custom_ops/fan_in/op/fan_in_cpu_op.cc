// The CPU kernels of logits, top-k, losses and their gradients.
#include "fan_in/op/fan_in_cpu_op.h"

#include "fan_in/op/fan_in_candidate_op.h"
#include "fan_in/op/fan_in_logits_op.h"
#include "fan_in/op/fan_in_loss_op.h"

namespace largeout {
namespace {

LARGEOUT_FAN_IN_CPU("Largeout>FanInLogits", FanInLogitsOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInLogitsGrad", FanInLogitsGradOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInTopK", FanInTopKOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInLoss", FanInLossOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInLossGrad", FanInLossGradOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInStep", FanInStepOp);
LARGEOUT_FAN_IN_CPU("Largeout>FanInCandidateGrad", FanInCandidateGradOp);

}  // namespace
}  // namespace largeout
