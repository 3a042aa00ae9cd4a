// The kernel of EmbeddingUpdate on any device: validate, lock, call. Device: EmbeddingUpdateCpu or
// EmbeddingUpdateGpu.
#ifndef LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_KERNEL_OP_H_
#define LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_KERNEL_OP_H_

#include "embedding/op/embedding_kernel_op.h"
#include "row_update/op/row_rule_op.h"

namespace largeout {

template <typename Device, typename T, typename Id>
class EmbeddingUpdateOp final : public EmbeddingOpBase<Device> {
 public:
  explicit EmbeddingUpdateOp(tensorflow::OpKernelConstruction* context)
      : EmbeddingOpBase<Device>(context), rule_(context) {}

  void Run(tensorflow::OpKernelContext* context) override {
    const int at = rule_.end();
    const tensorflow::Tensor &grad = context->input(at + 3), &hyper = context->input(at + 4),
                             &rounding = context->input(at + 5);
    StepNumbers numbers(nullptr);
    OP_REQUIRES_OK(context, FindStepNumbers(tensorflow::DataTypeToEnum<T>::value, hyper, rounding, &numbers));
    LockedVariables variables;  // the table, then its slots
    OP_REQUIRES_OK(context, rule_.Find(context, tensorflow::DataTypeToEnum<T>::value, &variables));
    variables.Lock();
    OP_REQUIRES_OK(context, rule_.CheckShapes(variables, hyper));
    const tensorflow::TensorShape& shape = variables[0].shape();
    OP_REQUIRES(context, shape.dims() == 2,
                absl::InvalidArgumentError(absl::StrCat(
                    "`variable` must have the shape [rows, dim]. Received: shape=", shape.DebugString())));
    const int64_t rows = shape.dim_size(0), dim = shape.dim_size(1);
    OpCall<typename Device::Call> call(context);
    Device device(call.get());
    Bags<Id> bags;
    tensorflow::TensorShape leading;
    OP_REQUIRES_OK(context, this->CheckedBags(call, &device, at, rows, &bags, &leading, true));
    OP_REQUIRES_OK(context, CheckGradShape(grad.shape(), leading, dim));
    if (bags.num_ids == 0 || dim == 0) return;
    OP_REQUIRES_OK(context, variables.Own(&call));
    float* slots[kMaxSlots];
    rule_.Slots(&variables, slots);
    OP_REQUIRES_OK(context,
                   call.Status(device.Update(bags, this->attributes_.combiner(), Data<T>(grad), rule_.get(),
                                             Data<T>(variables.writable(0)), rows, dim, slots, numbers)));
  }

 private:
  const RowRule rule_;
};

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_KERNEL_OP_H_
