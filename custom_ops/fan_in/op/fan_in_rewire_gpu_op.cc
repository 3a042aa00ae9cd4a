// The GPU kernels of connections, pruning and regrowth. Numbers and pairs lie on the host.
#if LARGEOUT_CUDA
#include "common/op/tf_gpu_op.h"
#include "fan_in/op/fan_in_regrow_op.h"
#include "fan_in/cuda/fan_in_rewire_cuda.h"

namespace largeout {
namespace {

// Calls the kernels of fan_in_rewire_cuda.h; the twin of FanInRewireCpu.
struct FanInRewireGpu {
  using Context = tensorflow::OpKernelContext;

  template <typename T>
  static absl::Status OwnMemory(Context* context, tensorflow::Var* variable) {
    return largeout::OwnMemory(context, variable);
  }

  template <typename Id>
  static absl::Status Connections(Context* context, int64_t rows, int64_t fan_in, int64_t inputs,
                                  uint64_t key, int64_t first_class, Id* indices) {
    tensorflow::Tensor memory;
    TF_RETURN_IF_ERROR(GpuWorkspace(context, FanInDrawWorkspaceCuda(rows, 0, fan_in, inputs), &memory));
    return GpuStatus(FanInConnectionsCuda(rows, fan_in, inputs, key, first_class, indices, memory.data(),
                                          ContextStream(context)));
  }

  // *bad: see BadRow.
  template <typename Id>
  static absl::Status Candidates(Context* context, const Id* indices, int64_t fan_in, int64_t inputs,
                                 uint64_t key, int64_t first_class, int64_t first_row, int64_t rows,
                                 int64_t count, int32_t* candidates, int64_t* bad) {
    tensorflow::Tensor memory;
    TF_RETURN_IF_ERROR(GpuWorkspace(context, FanInDrawWorkspaceCuda(rows, fan_in, count, inputs), &memory));
    return GpuStatus(FanInCandidatesCuda(indices, fan_in, inputs, key, first_class, first_row, rows, count,
                                         candidates, memory.data(), ContextStream(context), bad));
  }

  template <typename T>
  static absl::Status KeyCounts(Context* context, const T* weights, int64_t rows, int64_t fan_in,
                                uint64_t key, int64_t first_class, uint64_t prefix, int digit,
                                int64_t* counts) {
    return GpuStatus(FanInKeyCountsCuda(weights, rows, fan_in, key, first_class, prefix, digit, counts,
                                        ContextStream(context)));
  }

  template <typename T, typename Id>
  static absl::Status Rewire(Context* context, const FanInRewiring<T, Id>& r, int64_t* changes, int64_t* bad,
                             bool* bad_candidate) {
    tensorflow::Tensor memory;
    TF_RETURN_IF_ERROR(GpuWorkspace(
        context, FanInDrawWorkspaceCuda(r.rows, r.fan_in, 2 * r.fan_in, r.inputs, r.num_slots), &memory));
    return GpuStatus(FanInRewireCuda(r, changes, memory.data(), ContextStream(context), bad, bad_candidate));
  }

  template <typename Id>
  static absl::Status Degrees(Context* context, const Id* indices, int64_t rows, int64_t fan_in,
                              int64_t inputs, int64_t* degrees, int64_t* bad) {
    tensorflow::Tensor memory;
    TF_RETURN_IF_ERROR(GpuWorkspace(context, kFanInDegreesWorkspaceCuda, &memory));
    return GpuStatus(
        FanInDegreesCuda(indices, rows, fan_in, inputs, degrees, memory.data(), ContextStream(context), bad));
  }
};

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
