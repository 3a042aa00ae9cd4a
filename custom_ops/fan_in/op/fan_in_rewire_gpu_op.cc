// The GPU kernels of connections, pruning and regrowth. Numbers and pairs are on the host.
#if LARGEOUT_CUDA
#include "common/op/tf_gpu_op.h"
#include "fan_in/fan_in_rewire.h"
#include "fan_in/op/fan_in_regrow_op.h"

namespace largeout {
namespace {

using Device = FanInRewireGpu;

#define REGISTER_ONE(name, attribute, Type, Kernel, host)                                                 \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_GPU) host.TypeConstraint<Type>(attribute), \
                          Kernel<Device, Type>)
#define REGISTER_REWIRE(T, Id)                                 \
  REGISTER_KERNEL_BUILDER(Name("Largeout>FanInRewire")         \
                              .Device(tensorflow::DEVICE_GPU)  \
                              .HostMemory("weights")           \
                              .HostMemory("indices")           \
                              .HostMemory("slots")             \
                              .HostMemory("num_inputs")        \
                              .HostMemory("rows")              \
                              .HostMemory("first_class")       \
                              .HostMemory("count")             \
                              .HostMemory("threshold")         \
                              .HostMemory("seed")              \
                              .TypeConstraint<T>("dtype")      \
                              .TypeConstraint<Id>("Tindices"), \
                          FanInRewireOp<Device, T, Id>)
#define CONNECTIONS_HOST         \
  .HostMemory("num_rows")        \
      .HostMemory("fan_in")      \
      .HostMemory("num_inputs")  \
      .HostMemory("first_class") \
      .HostMemory("seed")
#define CANDIDATES_HOST          \
  .HostMemory("indices")         \
      .HostMemory("num_inputs")  \
      .HostMemory("rows")        \
      .HostMemory("first_class") \
      .HostMemory("count")       \
      .HostMemory("seed")
#define COUNTS_HOST .HostMemory("weights").HostMemory("prefix").HostMemory("seed").HostMemory("first_class")
#define DEGREES_HOST .HostMemory("indices").HostMemory("num_inputs")
#define REGISTER_INDICES(Id)                                                                    \
  REGISTER_ONE("Largeout>FanInConnections", "dtype", Id, FanInConnectionsOp, CONNECTIONS_HOST); \
  REGISTER_ONE("Largeout>FanInCandidates", "Tindices", Id, FanInCandidatesOp, CANDIDATES_HOST); \
  REGISTER_ONE("Largeout>FanInDegrees", "Tindices", Id, FanInDegreesOp, DEGREES_HOST);          \
  REGISTER_REWIRE(float, Id);                                                                   \
  REGISTER_REWIRE(Eigen::bfloat16, Id)
REGISTER_INDICES(uint16_t);
REGISTER_INDICES(uint32_t);
REGISTER_ONE("Largeout>FanInKeyCounts", "dtype", float, FanInKeyCountsOp, COUNTS_HOST);
REGISTER_ONE("Largeout>FanInKeyCounts", "dtype", Eigen::bfloat16, FanInKeyCountsOp, COUNTS_HOST);

}  // namespace
}  // namespace largeout
#endif  // LARGEOUT_CUDA
