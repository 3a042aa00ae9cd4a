#include "exchange/op/exchange_op.h"

#if LARGEOUT_CUDA
#include "common/op/tf_gpu_op.h"
#include "exchange/cuda/exchange_cuda.h"

namespace largeout {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename Id, typename KernelId>
class PartitionIdsGpuOp : public OpKernel {
 public:
  explicit PartitionIdsGpuOp(OpKernelConstruction* context) : OpKernel(context), attributes_(context) {}

  void Compute(OpKernelContext* context) override {
    const PartitionInputs in(context);
    PlacementView placement;
    OP_REQUIRES_OK(context, attributes_.ToPlacement(in, &placement));
    const KernelId* ids = reinterpret_cast<const KernelId*>(in.ids.flat<Id>().data());
    const int64_t n = in.ids.NumElements();
    const GpuStream stream = ContextStream(context);

    tensorflow::AllocatorAttributes on_host;
    on_host.set_on_host(true);
    Tensor *unique, *local, *inverse, *cuts;
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({placement.shards + 2}), &cuts, on_host));
    Tensor workspace;
    OP_REQUIRES_OK(context, GpuWorkspace(context, PartitionWorkspaceCuda(placement, n), &workspace));
    PartitionPlanCuda plan;
    OP_REQUIRES_OK(
        context, GpuStatus(PlanPartitionCuda(placement, ids, n, attributes_.error(), workspace.data(), stream,
                                             Data<int64_t>(cuts), &plan)));
    OP_REQUIRES_OK(context, Verdict(context, in, placement, ids, plan));

    const TensorShape shape({plan.num_unique});
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &unique));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &local));
    OP_REQUIRES_OK(context, context->allocate_output(2, in.ids.shape(), &inverse));
    OP_REQUIRES_OK(context, GpuStatus(WritePartitionCuda(plan, Data<int64_t>(unique), Data<int64_t>(local),
                                                         inverse->flat<tensorflow::int32>().data(), stream)));
  }

 private:
  // The error of the first bad value, in the order in which the CPU looks.
  static absl::Status Verdict(OpKernelContext* context, const PartitionInputs& in,
                              const PlacementView& placement, const KernelId* ids,
                              const PartitionPlanCuda& plan) {
    const auto read = [context](const auto* device, auto* value) {
      return GpuStatus(CopyToHostCuda(device, sizeof(*value), value, ContextStream(context)));
    };
    if (plan.bad_hot >= 0) {
      int64_t row = 0;
      TF_RETURN_IF_ERROR(read(placement.hot + plan.bad_hot, &row));
      return BadHot(plan.bad_hot, row, placement.rows);
    }
    KernelId id = 0;
    if (plan.bad_id >= 0) {
      TF_RETURN_IF_ERROR(read(ids + plan.bad_id, &id));
      return BadId(in.ids.shape(), plan.bad_id, id, placement.rows);
    }
    if (plan.bad_position >= 0) {
      int64_t position = 0;
      TF_RETURN_IF_ERROR(read(ids + plan.bad_position, &id));
      TF_RETURN_IF_ERROR(read(placement.position_of + id, &position));
      return BadPosition(id, position, placement.offsets[placement.shards]);
    }
    return absl::OkStatus();
  }

  const PartitionAttributes attributes_;
};

#define LARGEOUT_REGISTER(Id, KernelId)                       \
  REGISTER_KERNEL_BUILDER(Name("Largeout>PartitionIds")       \
                              .Device(tensorflow::DEVICE_GPU) \
                              .HostMemory("offsets")          \
                              .HostMemory("cuts")             \
                              .TypeConstraint<Id>("Tids"),    \
                          PartitionIdsGpuOp<Id, KernelId>)
LARGEOUT_REGISTER(tensorflow::int32, int32_t);
LARGEOUT_REGISTER(tensorflow::int64, int64_t);
#undef LARGEOUT_REGISTER

}  // namespace
}  // namespace largeout
#endif  // LARGEOUT_CUDA
