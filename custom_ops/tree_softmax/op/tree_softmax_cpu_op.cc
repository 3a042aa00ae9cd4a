// The CPU kernels of tree_softmax: validate, allocate, call.
#include <algorithm>
#include <cstring>

#include "common/huge_pages.h"
#include "common/op/tf_op.h"
#include "tree_softmax/tree_softmax.h"
#include "tree_softmax/op/tree_softmax_op.h"

namespace largeout {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// hidden as float32: itself, or a copy that lives in *storage.
template <typename Thidden>
absl::Status FloatHidden(OpKernelContext* context, const Tensor& hidden, Parallel* parallel, Tensor* storage,
                         const float** data) {
  if constexpr (std::is_same<Thidden, float>::value) {
    *data = Data<float>(hidden);
  } else {
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_FLOAT, hidden.shape(), storage));
    ToFloats(Data<Thidden>(hidden), hidden.NumElements(), Data<float>(storage), parallel);
    *data = Data<float>(*storage);
  }
  return absl::OkStatus();
}

absl::Status CopyOutput(OpKernelContext* context, int at, const std::vector<int32_t>& values) {
  Tensor* output;
  TF_RETURN_IF_ERROR(context->allocate_output(at, {static_cast<int64_t>(values.size())}, &output));
  if (!values.empty()) std::memcpy(output->data(), values.data(), values.size() * sizeof(int32_t));
  return absl::OkStatus();
}

template <typename T, typename Thidden, typename Ttargets>
class TreeSoftmaxLossOp : public OpKernel {
 public:
  explicit TreeSoftmaxLossOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("max_saved_bytes", &max_saved_bytes_));
    OP_REQUIRES_OK(context, context->GetAttr("forest", &forest_));
    OP_REQUIRES_OK(context, context->GetAttr("num_classes", &num_classes_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &hidden = context->input(0), &targets = context->input(1), &weights = context->input(2);
    LockedTable variables;
    OP_REQUIRES_OK(context, variables.Open(context, 3, tensorflow::DataTypeToEnum<T>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Check(hidden));
    const int64_t tokens = hidden.dim_size(0);
    OP_REQUIRES_OK(context, CheckVector(targets, tokens, "targets"));
    OP_REQUIRES_OK(context, CheckVector(weights, tokens, "weights", true));
    TreeArrays tree;
    OP_REQUIRES_OK(context, OpenTree(context, 5, variables.table().dim_size(0), forest_, &tree));

    ContextParallel parallel(context);
    TreePairs pairs;
    const auto* ids = Data<Ttargets>(targets);
    const TreeStatus status = BuildTreePairs(tree, ids, WeightsOf(weights), tokens, &parallel, &pairs);
    OP_REQUIRES_OK(context, BadPairs(status, num_classes_ > 0 ? num_classes_ : tree.classes, pairs.bad_position < 0 ? -1 : ids[pairs.bad_position],
                                     pairs.bad_position));
    const int64_t count = static_cast<int64_t>(pairs.token.size());
    const bool save = pairs.prob_count <= max_saved_bytes_ / static_cast<int64_t>(sizeof(float));
    Tensor *loss, *lse, *probs, storage;
    OP_REQUIRES_OK(context, context->allocate_output(0, {tokens}, &loss));
    OP_REQUIRES_OK(context, CopyOutput(context, 1, pairs.token));
    OP_REQUIRES_OK(context, CopyOutput(context, 2, pairs.row));
    OP_REQUIRES_OK(context, CopyOutput(context, 3, pairs.group_node));
    OP_REQUIRES_OK(context, CopyOutput(context, 4, pairs.group_start));
    OP_REQUIRES_OK(context, context->allocate_output(5, {count}, &lse));
    OP_REQUIRES_OK(context, context->allocate_output(6, {save ? pairs.prob_count : 0}, &probs));
    AdviseHugePages(probs->data(), probs->TotalBytes());
    const float* values;
    OP_REQUIRES_OK(context, FloatHidden<Thidden>(context, hidden, &parallel, &storage, &values));
    TreeSoftmaxLoss(tree, TableOf<T>(variables), values, WeightsOf(weights), tokens, pairs, Data<float>(loss),
                    Data<float>(lse), save ? Data<float>(probs) : nullptr, &parallel);
  }

 private:
  bool use_bias_, forest_;
  int64_t max_saved_bytes_, num_classes_;
};

template <typename T, typename Thidden>
class TreeSoftmaxGradOp : public OpKernel {
 public:
  explicit TreeSoftmaxGradOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("max_saved_bytes", &max_saved_bytes_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &hidden = context->input(0), &weights = context->input(1), &grad_loss = context->input(2);
    LockedTable variables;
    OP_REQUIRES_OK(context, variables.Open(context, 3, tensorflow::DataTypeToEnum<T>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Check(hidden));
    const int64_t tokens = hidden.dim_size(0), dim = hidden.dim_size(1), nodes = context->input(6).NumElements();
    OP_REQUIRES_OK(context, CheckVector(weights, tokens, "weights", true));
    OP_REQUIRES_OK(context, CheckVector(grad_loss, tokens, "grad_loss"));
    OP_REQUIRES_OK(context, CheckVector(context->input(6), nodes, "node_parent"));
    OP_REQUIRES_OK(context, CheckVector(context->input(5), nodes + 1, "node_start"));
    const TreeArrays tree{nullptr, Data<int32_t>(context->input(5)), nullptr, Data<int32_t>(context->input(6)), nullptr,
                          0,       nodes,                            variables.table().dim_size(0)};
    TreeSaved saved;
    OP_REQUIRES_OK(context, OpenSaved(context, 7, &saved));
    int64_t unique, prob_count;
    const bool good = CheckTreeSaved(tree, saved, tokens, &unique, &prob_count);
    OP_REQUIRES(context, good && (saved.probs == nullptr || context->input(12).NumElements() == prob_count),
                BadSaved());

    ContextParallel parallel(context);
    Tensor *d_hidden, *rows, *bias_grads, row_grads, hidden_storage, d_hidden_storage;
    OP_REQUIRES_OK(context, context->allocate_output(0, hidden.shape(), &d_hidden));
    OP_REQUIRES_OK(context, context->allocate_output(1, {unique}, &rows));
    OP_REQUIRES_OK(context, AllocateRows(context, unique, dim, &row_grads));
    context->set_output(2, row_grads);
    OP_REQUIRES_OK(context, context->allocate_output(3, {use_bias_ ? unique : 0}, &bias_grads));
    const float* values;
    OP_REQUIRES_OK(context, FloatHidden<Thidden>(context, hidden, &parallel, &hidden_storage, &values));
    constexpr bool kFloat = std::is_same<Thidden, float>::value;
    if (!kFloat) OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, hidden.shape(), &d_hidden_storage));
    float* gradient = Data<float>(kFloat ? d_hidden : &d_hidden_storage);
    TreeSoftmaxGrad(tree, TableOf<T>(variables), values, WeightsOf(weights), Data<float>(grad_loss), tokens, saved,
                    max_saved_bytes_, gradient, reinterpret_cast<int64_t*>(rows->data()), Data<T>(&row_grads),
                    use_bias_ ? Data<float>(bias_grads) : nullptr, &parallel);
    if constexpr (!kFloat) FromFloats(gradient, hidden.NumElements(), Data<Thidden>(d_hidden), &parallel);
  }

 private:
  // Row gradients are tens of megabytes in every step: new memory from the system each time costs a page fault every 4 KB,
  // as much as computing them. The kernel keeps the memory of the last step and hands it out again once nobody else
  // holds it. Sizes beyond kKeptBytes are rare steps' or huge models', and are not kept.
  absl::Status AllocateRows(OpKernelContext* context, int64_t rows, int64_t dim, Tensor* out) {
    constexpr int64_t kKeptBytes = int64_t{256} << 20;
    const tensorflow::DataType dtype = tensorflow::DataTypeToEnum<T>::value;
    if (rows == 0 || dim == 0 || rows * dim * static_cast<int64_t>(sizeof(T)) > kKeptBytes) {
      TF_RETURN_IF_ERROR(context->allocate_temp(dtype, {rows, dim}, out));
      AdviseHugePages(out->data(), out->TotalBytes());
      return absl::OkStatus();
    }
    tensorflow::mutex_lock lock(mu_);
    if (!kept_.RefCountIsOne() || kept_.dim_size(0) < rows || kept_.dim_size(1) != dim) {
      kept_ = Tensor();
      TF_RETURN_IF_ERROR(context->allocate_temp(dtype, {rows + rows / 8, dim}, &kept_));
      AdviseHugePages(kept_.data(), kept_.TotalBytes());
    }
    *out = kept_.Slice(0, rows);
    return absl::OkStatus();
  }

  bool use_bias_;
  int64_t max_saved_bytes_;
  tensorflow::mutex mu_;
  Tensor kept_ TF_GUARDED_BY(mu_);
};

template <typename T, typename Thidden, typename Tids>
class TreeTopKOp : public OpKernel {
 public:
  explicit TreeTopKOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& hidden = context->input(0);
    LockedTable variables;
    OP_REQUIRES_OK(context, variables.Open(context, 2, tensorflow::DataTypeToEnum<T>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Check(hidden));
    const int64_t queries = hidden.dim_size(0);
    TreeArrays tree;
    int64_t k;
    OP_REQUIRES_OK(context, OpenTopK(context, variables.table().dim_size(0), &tree, &k));
    Tensor *log_probs, *ids, storage;
    OP_REQUIRES_OK(context, context->allocate_output(0, {queries, k}, &log_probs));
    OP_REQUIRES_OK(context, context->allocate_output(1, {queries, k}, &ids));
    ContextParallel parallel(context);
    const float* values;
    OP_REQUIRES_OK(context, FloatHidden<Thidden>(context, hidden, &parallel, &storage, &values));
    OP_REQUIRES(context,
                TreeTopK(tree, Data<int32_t>(context->input(5)), TableOf<T>(variables), values, queries, k,
                         Data<float>(log_probs), Data<Tids>(ids), &parallel),
                BadTopKTree());
  }

 private:
  bool use_bias_;
};

}  // namespace

#define LARGEOUT_REGISTER(T, Thidden)                                                                                  \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeSoftmaxGrad")                                                             \
                              .Device(tensorflow::DEVICE_CPU)                                                          \
                              .TypeConstraint<T>("dtype")                                                              \
                              .TypeConstraint<Thidden>("Thidden"),                                                     \
                          TreeSoftmaxGradOp<T, Thidden>);                                                              \
  LARGEOUT_REGISTER_IDS(T, Thidden, int32_t)                                                                           \
  LARGEOUT_REGISTER_IDS(T, Thidden, int64_t)
#define LARGEOUT_REGISTER_IDS(T, Thidden, Tids)                                                                        \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeSoftmaxLoss")                                                             \
                              .Device(tensorflow::DEVICE_CPU)                                                          \
                              .TypeConstraint<T>("dtype")                                                              \
                              .TypeConstraint<Thidden>("Thidden")                                                      \
                              .TypeConstraint<Tids>("Ttargets"),                                                       \
                          TreeSoftmaxLossOp<T, Thidden, Tids>);                                                        \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeTopK")                                                                    \
                              .Device(tensorflow::DEVICE_CPU)                                                          \
                              .TypeConstraint<T>("dtype")                                                              \
                              .TypeConstraint<Thidden>("Thidden")                                                      \
                              .TypeConstraint<Tids>("out_type"),                                                       \
                          TreeTopKOp<T, Thidden, Tids>);
LARGEOUT_REGISTER(float, float)
LARGEOUT_REGISTER(float, Eigen::bfloat16)
LARGEOUT_REGISTER(Eigen::bfloat16, float)
LARGEOUT_REGISTER(Eigen::bfloat16, Eigen::bfloat16)

}  // namespace largeout
