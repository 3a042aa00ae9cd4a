// The kernels of the loss and its gradient on any device: validate, allocate, call. Device: TreeSoftmaxCpu or
// TreeSoftmaxGpu.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_LOSS_OP_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_LOSS_OP_H_

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "tree_softmax/op/tree_softmax_plan_op.h"

namespace largeout {

// How many pairs a batch is likely to have: for each token a few more than those before it had, and not many
// more than the largest of them had in all.
class LikelyPairs {
 public:
  // 0: nothing is known.
  int64_t Pairs(int64_t tokens) const {
    const double expected = std::min<double>(each_ * static_cast<double>(tokens), most_);
    return expected > 0 ? static_cast<int64_t>(expected * 1.0625) + 64 : 0;
  }
  void Found(int64_t tokens, int64_t pairs) {
    if (tokens == 0) return;
    const double each = static_cast<double>(pairs) / static_cast<double>(tokens);
    each_ = std::max(each, 0.9 * each_ + 0.1 * each);  // it rises at once, and falls slowly
    most_ = std::max<double>(most_, static_cast<double>(pairs));
  }

 private:
  std::atomic<double> each_{0}, most_{0};  // pairs of a token, and of a batch
};

template <typename Device, typename T, typename Thidden, typename Ttargets>
class TreeSoftmaxLossOp : public GuardedOp {
 public:
  explicit TreeSoftmaxLossOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("max_saved_bytes", &max_saved_bytes_));
    OP_REQUIRES_OK(context, context->GetAttr("forest", &forest_));
    OP_REQUIRES_OK(context, context->GetAttr("num_classes", &num_classes_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor &hidden = context->input(0), &targets = context->input(1),
                             &weights = context->input(2);
    TableAndBias variables;
    OP_REQUIRES_OK(context, variables.Open(context, 3, tensorflow::DataTypeToEnum<T>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Check(hidden));
    const int64_t tokens = hidden.dim_size(0), dim = hidden.dim_size(1);
    OP_REQUIRES_OK(context, CheckShape(targets, "targets", {tokens}));
    OP_REQUIRES_OK(context, CheckShape(weights, "weights", {tokens}, true));
    TreeArrays tree;
    std::vector<tensorflow::Tensor> held;
    OP_REQUIRES_OK(context, OpenTree(context, 5, variables.table().dim_size(0), forest_, &tree));
    OP_REQUIRES_OK(context, on_device_.Get(context,
                                           {{5, &tree.class_row},
                                            {6, &tree.node_start},
                                            {7, &tree.node_row},
                                            {8, &tree.node_parent},
                                            {9, &tree.row_hint}},
                                           &held));

    OpCall<typename Device::Call> call(context);
    OpScratch lasting(context);
    Device device(call.get());
    TreePaths paths;
    OP_REQUIRES_OK(
        context, call.Status(device.FindPaths(tree, Data<Ttargets>(targets), WeightsOf(weights), tokens, dim,
                                              likely_.Pairs(tokens), &lasting, &paths)));
    OP_REQUIRES_OK(context, BadPaths(paths, num_classes_ > 0 ? num_classes_ : tree.classes));
    likely_.Found(tokens, paths.pairs);
    const bool save = paths.probs <= max_saved_bytes_ / static_cast<int64_t>(sizeof(float));
    const int64_t sizes[] = {tokens,           paths.pairs, paths.pairs,           paths.groups,
                             paths.groups + 1, paths.pairs, save ? paths.probs : 0};
    tensorflow::Tensor* out[7];
    for (int i = 0; i < 7; ++i) OP_REQUIRES_OK(context, context->allocate_output(i, {sizes[i]}, &out[i]));
    const TreeLossOutputs outputs{Data<float>(out[0]),
                                  Data<int32_t>(out[1]),
                                  Data<int32_t>(out[2]),
                                  Data<int32_t>(out[3]),
                                  Data<int32_t>(out[4]),
                                  Data<float>(out[5]),
                                  save ? Data<float>(out[6]) : nullptr};
    OP_REQUIRES_OK(context, call.Status(device.Loss(tree, TreeTableOf<T>(variables), Data<Thidden>(hidden),
                                                    WeightsOf(weights), tokens, outputs, max_saved_bytes_)));
    OP_REQUIRES_OK(
        context, KeepTreePlan<typename KernelType<T>::type>(
                     context, 6, 8, 1, {tokens, dim, variables.table().dim_size(0)}, save, device, &lasting));
  }

 private:
  bool use_bias_, forest_;
  int64_t max_saved_bytes_, num_classes_;
  LikelyPairs likely_;
  TreeOnDevice<typename Device::Call> on_device_;
};

template <typename Device, typename T, typename Thidden>
class TreeSoftmaxGradOp : public GuardedOp {
 public:
  explicit TreeSoftmaxGradOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("max_saved_bytes", &max_saved_bytes_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor &hidden = context->input(0), &weights = context->input(1),
                             &grad_loss = context->input(2);
    TableAndBias variables;
    OP_REQUIRES_OK(context, variables.Open(context, 3, tensorflow::DataTypeToEnum<T>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Check(hidden));
    const int64_t tokens = hidden.dim_size(0), dim = hidden.dim_size(1);
    OP_REQUIRES_OK(context, CheckShape(weights, "weights", {tokens}, true));
    OP_REQUIRES_OK(context, CheckShape(grad_loss, "grad_loss", {tokens}));
    TreeArrays tree;
    OP_REQUIRES_OK(context, OpenNodes(context, 5, variables.table().dim_size(0), &tree));
    std::vector<tensorflow::Tensor> held;
    OP_REQUIRES_OK(context, on_device_.Get(context, {{5, &tree.node_start}, {6, &tree.node_parent}}, &held));
    TreeSaved saved;
    OP_REQUIRES_OK(context, OpenSaved(context, 7, &saved));

    OpCall<typename Device::Call> call(context);
    Device device(call.get());
    TreeTouched touched;
    std::vector<tensorflow::Tensor> memory;
    OP_REQUIRES_OK(context, PlanTreeGradient<typename KernelType<T>::type>(
                                context, 5, tree, saved, tokens, dim, call, &device, &memory, &touched));
    tensorflow::Tensor *d_hidden, *rows, *bias_grads, row_grads;
    OP_REQUIRES_OK(context, context->allocate_output(0, hidden.shape(), &d_hidden));
    OP_REQUIRES_OK(context, context->allocate_output(1, {touched.rows}, &rows));
    OP_REQUIRES_OK(context, AllocateRows(context, touched.rows, dim, &row_grads));
    context->set_output(2, row_grads);
    OP_REQUIRES_OK(context, context->allocate_output(3, {use_bias_ ? touched.rows : 0}, &bias_grads));
    OP_REQUIRES_OK(context, call.Status(device.Gradient(
                                tree, TreeTableOf<T>(variables), Data<Thidden>(hidden), WeightsOf(weights),
                                Data<float>(grad_loss), tokens, saved, max_saved_bytes_,
                                Data<Thidden>(d_hidden), reinterpret_cast<int64_t*>(rows->data()),
                                Data<T>(&row_grads), use_bias_ ? Data<float>(bias_grads) : nullptr)));
  }

 private:
  // On CPUs row gradients are tens of megabytes in every step: new memory from the system each time costs a
  // page fault every 4 KB, as much as computing them. The kernel keeps the memory of the last step and hands
  // it out again once nobody else holds it. Sizes beyond kKeptBytes are rare steps' or huge models', and are
  // not kept. (TensorFlow keeps memory of GPUs itself.)
  absl::Status AllocateRows(tensorflow::OpKernelContext* context, int64_t rows, int64_t dim,
                            tensorflow::Tensor* out) {
    constexpr bool kOnHost = std::is_same<typename Device::Call, CpuCall>::value;
    constexpr int64_t kKeptBytes = int64_t{256} << 20;
    const tensorflow::DataType dtype = tensorflow::DataTypeToEnum<T>::value;
    if (!kOnHost || rows == 0 || dim == 0 || rows * dim * static_cast<int64_t>(sizeof(T)) > kKeptBytes) {
      TF_RETURN_IF_ERROR(context->allocate_temp(dtype, {rows, dim}, out));
      if (kOnHost) AdviseHugePages(out->data(), out->TotalBytes());
      return absl::OkStatus();
    }
    tensorflow::mutex_lock lock(mu_);
    if (!kept_.RefCountIsOne() || kept_.dim_size(0) < rows || kept_.dim_size(1) != dim) {
      kept_ = tensorflow::Tensor();
      TF_RETURN_IF_ERROR(context->allocate_temp(dtype, {rows + rows / 8, dim}, &kept_));
      AdviseHugePages(kept_.data(), kept_.TotalBytes());
    }
    *out = kept_.Slice(0, rows);
    return absl::OkStatus();
  }

  bool use_bias_;
  int64_t max_saved_bytes_;
  TreeOnDevice<typename Device::Call> on_device_;
  tensorflow::mutex mu_;
  tensorflow::Tensor kept_ TF_GUARDED_BY(mu_);
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_LOSS_OP_H_
