// The kernel of TreeSoftmaxUpdate on any device: validate, lock, call. Device: TreeUpdateCpu or
// TreeUpdateGpu.
#ifndef LARGEOUT_TREE_UPDATE_TREE_UPDATE_KERNEL_OP_H_
#define LARGEOUT_TREE_UPDATE_TREE_UPDATE_KERNEL_OP_H_

#include "row_update/op/row_rule_op.h"
#include "tree_softmax/op/tree_softmax_plan_op.h"
#include "tree_update/tree_update.h"

namespace largeout {

template <typename Device, typename T, typename Thidden>
class TreeSoftmaxUpdateOp final : public GuardedOp {
 public:
  explicit TreeSoftmaxUpdateOp(tensorflow::OpKernelConstruction* context)
      : GuardedOp(context), rule_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("max_saved_bytes", &max_saved_bytes_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    using Row = typename KernelType<T>::type;
    const int at = rule_.end();
    const tensorflow::Tensor &hidden = context->input(at + 1), &weights = context->input(at + 2),
                             &grad_loss = context->input(at + 3), &hyper = context->input(at + 4),
                             &rounding = context->input(at + 13);
    StepNumbers numbers(nullptr);
    OP_REQUIRES_OK(context, FindStepNumbers(tensorflow::DataTypeToEnum<T>::value, hyper, rounding, &numbers));
    LockedVariables variables;  // the table, its slots, the bias
    OP_REQUIRES_OK(context, rule_.Find(context, tensorflow::DataTypeToEnum<T>::value, &variables));
    if (use_bias_) OP_REQUIRES_OK(context, variables.Find(context, at, tensorflow::DT_FLOAT, "bias"));
    variables.Lock();
    OP_REQUIRES_OK(context, rule_.CheckShapes(variables, hyper));
    const tensorflow::Tensor* bias = use_bias_ ? &variables[at] : nullptr;
    OP_REQUIRES_OK(context, CheckHidden(hidden, variables[0], bias));
    const int64_t tokens = hidden.dim_size(0), dim = hidden.dim_size(1);
    OP_REQUIRES_OK(context, CheckShape(weights, "weights", {tokens}, true));
    OP_REQUIRES_OK(context, CheckShape(grad_loss, "grad_loss", {tokens}));
    TreeArrays tree;
    OP_REQUIRES_OK(context, OpenNodes(context, at + 5, variables[0].dim_size(0), &tree));
    std::vector<tensorflow::Tensor> held;
    OP_REQUIRES_OK(context,
                   on_device_.Get(context, {{at + 5, &tree.node_start}, {at + 6, &tree.node_parent}}, &held));
    TreeSaved saved;
    OP_REQUIRES_OK(context, OpenSaved(context, at + 7, &saved));

    OpCall<typename Device::Call> call(context);
    Device device(call.get());
    TreeTouched touched;
    std::vector<tensorflow::Tensor> memory;
    OP_REQUIRES_OK(context, PlanTreeGradient<Row>(context, at + 5, tree, saved, tokens, dim, call, &device,
                                                  &memory, &touched));
    tensorflow::Tensor *d_hidden, *rows, *bias_grads;
    OP_REQUIRES_OK(context, context->allocate_output(0, hidden.shape(), &d_hidden));
    OP_REQUIRES_OK(context, context->allocate_output(1, {touched.rows}, &rows));
    OP_REQUIRES_OK(context, context->allocate_output(2, {use_bias_ ? touched.rows : 0}, &bias_grads));
    OP_REQUIRES_OK(context, variables.Own(&call));
    float* slots[kMaxSlots];
    rule_.Slots(&variables, slots);
    Row* table = Data<T>(variables.writable(0));
    const TreeStep<Row> step{rule_.get(), table, slots, numbers};
    OP_REQUIRES_OK(
        context,
        call.Status(device.Update(
            tree, TreeTable<Row>{table, bias == nullptr ? nullptr : Data<float>(*bias), dim},
            Data<Thidden>(hidden), WeightsOf(weights), Data<float>(grad_loss), tokens, saved,
            max_saved_bytes_, touched.rows, step, Data<Thidden>(d_hidden),
            reinterpret_cast<int64_t*>(rows->data()), use_bias_ ? Data<float>(bias_grads) : nullptr)));
  }

 private:
  const RowRule rule_;
  bool use_bias_;
  int64_t max_saved_bytes_;
  TreeOnDevice<typename Device::Call> on_device_;
};

// Launcher as the kernel of DEVICE, for all types. HOST is nothing, or the inputs in host memory.
#define LARGEOUT_TREE_UPDATE_TYPE(DEVICE, Launcher, T, Thidden, HOST)                     \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeSoftmaxUpdate")                              \
                              .Device(tensorflow::DEVICE) HOST.TypeConstraint<T>("dtype") \
                              .TypeConstraint<Thidden>("Thidden"),                        \
                          TreeSoftmaxUpdateOp<Launcher, T, Thidden>)
#define LARGEOUT_TREE_UPDATE_TYPES(DEVICE, Launcher, HOST)                   \
  LARGEOUT_TREE_UPDATE_TYPE(DEVICE, Launcher, float, float, HOST);           \
  LARGEOUT_TREE_UPDATE_TYPE(DEVICE, Launcher, float, Eigen::bfloat16, HOST); \
  LARGEOUT_TREE_UPDATE_TYPE(DEVICE, Launcher, Eigen::bfloat16, float, HOST); \
  LARGEOUT_TREE_UPDATE_TYPE(DEVICE, Launcher, Eigen::bfloat16, Eigen::bfloat16, HOST)

}  // namespace largeout

#endif  // LARGEOUT_TREE_UPDATE_TREE_UPDATE_KERNEL_OP_H_
