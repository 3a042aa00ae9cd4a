// The kernel of the best-first search on any device: validate, allocate, call.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TOPK_OP_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TOPK_OP_H_

#include "tree_softmax/op/tree_softmax_op.h"

namespace largeout {

template <typename Device, typename T, typename Thidden, typename Tids>
class TreeTopKOp : public GuardedOp {
 public:
  explicit TreeTopKOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& hidden = context->input(0);
    TableAndBias variables;
    OP_REQUIRES_OK(context, variables.Open(context, 2, tensorflow::DataTypeToEnum<T>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Check(hidden));
    const int64_t queries = hidden.dim_size(0);
    TreeArrays tree;
    int64_t k;
    const int32_t* row_child;
    std::vector<tensorflow::Tensor> held;
    OP_REQUIRES_OK(context, OpenTopK(context, variables.table().dim_size(0), &tree, &k));
    OP_REQUIRES_OK(context, on_device_.Get(context, {{4, &tree.node_start}, {5, &row_child}}, &held));
    tensorflow::Tensor *log_probs, *ids;
    OP_REQUIRES_OK(context, context->allocate_output(0, {queries, k}, &log_probs));
    OP_REQUIRES_OK(context, context->allocate_output(1, {queries, k}, &ids));
    OpCall<typename Device::Call> call(context);
    bool ok;
    OP_REQUIRES_OK(
        context, call.Status(Device(call.get())
                                 .TopK(tree, row_child, TreeTableOf<T>(variables), Data<Thidden>(hidden), queries,
                                       k, Data<float>(log_probs), Data<Tids>(ids), &ok)));
    OP_REQUIRES(context, ok, BadTopKTree());
  }

 private:
  bool use_bias_;
  TreeOnDevice<typename Device::Call> on_device_;
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TOPK_OP_H_
