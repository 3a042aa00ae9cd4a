#include "exchange/op/exchange_op.h"

namespace largeout {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename Id, typename KernelId>
class PartitionIdsOp : public OpKernel {
 public:
  explicit PartitionIdsOp(OpKernelConstruction* context) : OpKernel(context), attributes_(context) {}

  void Compute(OpKernelContext* context) override {
    const PartitionInputs in(context);
    PlacementView placement;
    OP_REQUIRES_OK(context, attributes_.ToPlacement(in, &placement));
    const KernelId* ids = reinterpret_cast<const KernelId*>(in.ids.flat<Id>().data());
    const int64_t n = in.ids.NumElements();
    const int64_t bad_hot = FirstBadHot(placement.hot, placement.num_hot, placement.rows);
    OP_REQUIRES(context, bad_hot < 0, BadHot(bad_hot, placement.hot[bad_hot], placement.rows));
    if (attributes_.error()) {
      const int64_t bad = FirstBadId(ids, n, placement.rows);
      OP_REQUIRES(context, bad < 0, BadId(in.ids.shape(), bad, ids[bad], placement.rows));
    }
    ContextParallel parallel(context);
    Groups groups;
    const int64_t bad = GroupByPosition(placement, ids, n, &parallel, &groups);
    OP_REQUIRES(context, bad < 0,
                BadPosition(ids[bad], placement.position_of[ids[bad]], placement.offsets[placement.shards]));

    const TensorShape shape({static_cast<int64_t>(groups.unique.size())});
    Tensor *unique, *local, *inverse, *cuts;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &unique));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &local));
    OP_REQUIRES_OK(context, context->allocate_output(2, in.ids.shape(), &inverse));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({placement.shards + 2}), &cuts));
    WritePartition(placement, groups, n, Data<int64_t>(unique), Data<int64_t>(local),
                   inverse->flat<tensorflow::int32>().data(), Data<int64_t>(cuts), &parallel);
  }

 private:
  const PartitionAttributes attributes_;
};

#define LARGEOUT_REGISTER(Id, KernelId)                                                        \
  REGISTER_KERNEL_BUILDER(                                                                     \
      Name("Largeout>PartitionIds").Device(tensorflow::DEVICE_CPU).TypeConstraint<Id>("Tids"), \
      PartitionIdsOp<Id, KernelId>)
LARGEOUT_REGISTER(tensorflow::int32, int32_t);
LARGEOUT_REGISTER(tensorflow::int64, int64_t);
#undef LARGEOUT_REGISTER

}  // namespace
}  // namespace largeout
