// The CPU kernels of connections, pruning and regrowth.
#include "fan_in/fan_in_rewire.h"
#include "fan_in/op/fan_in_regrow_op.h"

namespace largeout {
namespace {

using Device = FanInRewireCpu;

#define REGISTER_ONE(name, attribute, Type, Kernel)                                                  \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<Type>(attribute), \
                          Kernel<Device, Type>)
#define REGISTER_REWIRE(T, Id)                                 \
  REGISTER_KERNEL_BUILDER(Name("Largeout>FanInRewire")         \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("dtype")      \
                              .TypeConstraint<Id>("Tindices"), \
                          FanInRewireOp<Device, T, Id>)
#define REGISTER_INDICES(Id)                                                   \
  REGISTER_ONE("Largeout>FanInConnections", "dtype", Id, FanInConnectionsOp);  \
  REGISTER_ONE("Largeout>FanInCandidates", "Tindices", Id, FanInCandidatesOp); \
  REGISTER_ONE("Largeout>FanInDegrees", "Tindices", Id, FanInDegreesOp);       \
  REGISTER_REWIRE(float, Id);                                                  \
  REGISTER_REWIRE(Eigen::bfloat16, Id)
REGISTER_INDICES(uint16_t);
REGISTER_INDICES(uint32_t);
REGISTER_ONE("Largeout>FanInKeyCounts", "dtype", float, FanInKeyCountsOp);
REGISTER_ONE("Largeout>FanInKeyCounts", "dtype", Eigen::bfloat16, FanInKeyCountsOp);

}  // namespace
}  // namespace largeout
