// The kernel of PartitionIds on any device: validate, allocate, call. Device: ExchangeCpu or ExchangeGpu.
#ifndef LARGEOUT_EXCHANGE_EXCHANGE_KERNEL_OP_H_
#define LARGEOUT_EXCHANGE_EXCHANGE_KERNEL_OP_H_

#include "common/op/call_op.h"
#include "exchange/op/exchange_op.h"

namespace largeout {

template <typename Device, typename Id>
class PartitionIdsOp : public GuardedOp {
 public:
  explicit PartitionIdsOp(tensorflow::OpKernelConstruction* context)
      : GuardedOp(context), attributes_(context) {}

  void Run(tensorflow::OpKernelContext* context) override {
    const PartitionInputs in(context);
    PlacementView placement;
    OP_REQUIRES_OK(context, attributes_.ToPlacement(in, &placement));
    tensorflow::AllocatorAttributes on_host;
    on_host.set_on_host(true);
    tensorflow::Tensor *unique, *local, *inverse, *cuts;
    OP_REQUIRES_OK(context, context->allocate_output(3, {placement.shards + 2}, &cuts, on_host));
    OpCall<typename Device::Call> call(context);
    Device device(call.get());
    PartitionFault fault;
    OP_REQUIRES_OK(context, call.Status(device.Plan(placement, in.ids.flat<Id>().data(), in.ids.NumElements(),
                                                    attributes_.error(), Data<int64_t>(cuts), &fault)));
    OP_REQUIRES(context, !fault.any(), BadPartition(fault, in.ids.shape(), placement));
    OP_REQUIRES_OK(context, context->allocate_output(0, {device.num_unique()}, &unique));
    OP_REQUIRES_OK(context, context->allocate_output(1, {device.num_unique()}, &local));
    OP_REQUIRES_OK(context, context->allocate_output(2, in.ids.shape(), &inverse));
    OP_REQUIRES_OK(context, call.Status(device.Write(Data<int64_t>(unique), Data<int64_t>(local),
                                                     Data<int32_t>(inverse))));
  }

 private:
  const PartitionAttributes attributes_;
};

}  // namespace largeout

#endif  // LARGEOUT_EXCHANGE_EXCHANGE_KERNEL_OP_H_
