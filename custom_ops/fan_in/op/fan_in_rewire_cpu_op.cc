// The CPU kernels of connections, pruning and regrowth.
#include "fan_in/op/fan_in_regrow_op.h"

namespace largeout {
namespace {

// Calls the kernels of fan_in_rewire.h.
struct FanInRewireCpu {
  using Context = tensorflow::OpKernelContext;

  template <typename T>
  static absl::Status OwnMemory(Context* context, tensorflow::Var* variable) {
    return tensorflow::EnsureSparseVariableAccess<Eigen::ThreadPoolDevice, T>(context, variable);
  }

  template <typename Id>
  static absl::Status Connections(Context* context, int64_t rows, int64_t fan_in, int64_t inputs,
                                  uint64_t key, int64_t first_class, Id* indices) {
    ContextParallel parallel(context);
    FanInConnections(rows, fan_in, inputs, key, first_class, indices, &parallel);
    return absl::OkStatus();
  }

  // *bad: see BadRow.
  template <typename Id>
  static absl::Status Candidates(Context* context, const Id* indices, int64_t fan_in, int64_t inputs,
                                 uint64_t key, int64_t first_class, int64_t first_row, int64_t rows,
                                 int64_t count, int32_t* candidates, int64_t* bad) {
    ContextParallel parallel(context);
    *bad = FanInCandidates(indices, fan_in, inputs, key, first_class, first_row, rows, count, candidates,
                           &parallel);
    return absl::OkStatus();
  }

  template <typename T>
  static absl::Status KeyCounts(Context* context, const T* weights, int64_t rows, int64_t fan_in,
                                uint64_t key, int64_t first_class, uint64_t prefix, int digit,
                                int64_t* counts) {
    ContextParallel parallel(context);
    FanInKeyCounts(weights, rows, fan_in, key, first_class, prefix, digit, counts, &parallel);
    return absl::OkStatus();
  }

  template <typename T, typename Id>
  static absl::Status Rewire(Context* context, const FanInRewiring<T, Id>& r, int64_t* changes, int64_t* bad,
                             bool* bad_candidate) {
    ContextParallel parallel(context);
    *bad = FanInRewire(r, changes, bad_candidate, &parallel);
    return absl::OkStatus();
  }

  template <typename Id>
  static absl::Status Degrees(Context* context, const Id* indices, int64_t rows, int64_t fan_in,
                              int64_t inputs, int64_t* degrees, int64_t* bad) {
    ContextParallel parallel(context);
    *bad = FanInDegrees(indices, rows, fan_in, inputs, degrees, &parallel);
    return absl::OkStatus();
  }
};

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
