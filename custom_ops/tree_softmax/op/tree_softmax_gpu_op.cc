// The GPU kernels of tree_softmax: validate, plan (the sizes come back to the host), allocate, call.
#if LARGEOUT_CUDA
#include "tree_softmax/op/tree_softmax_gpu_op.h"

namespace largeout {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// hidden as float32: itself, or a copy that lives in *storage.
template <typename Thidden>
absl::Status FloatHidden(OpKernelContext* context, const Tensor& hidden, Tensor* storage,
                         const float** data) {
  if constexpr (std::is_same<Thidden, float>::value) {
    *data = Data<float>(hidden);
  } else {
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_FLOAT, hidden.shape(), storage));
    TF_RETURN_IF_ERROR(GpuStatus(ToFloatsCuda(Data<Thidden>(hidden), hidden.NumElements(),
                                              Data<float>(storage), ContextStream(context))));
    *data = Data<float>(*storage);
  }
  return absl::OkStatus();
}

template <typename T, typename Thidden, typename Ttargets>
class TreeSoftmaxLossGpuOp : public OpKernel {
 public:
  explicit TreeSoftmaxLossGpuOp(OpKernelConstruction* context) : OpKernel(context) {
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
    const int64_t tokens = hidden.dim_size(0), dim = hidden.dim_size(1);
    OP_REQUIRES_OK(context, CheckVector(targets, tokens, "targets"));
    OP_REQUIRES_OK(context, CheckVector(weights, tokens, "weights", true));
    TreeArrays tree;
    OP_REQUIRES_OK(context, OpenTree(context, 5, variables.table().dim_size(0), forest_, &tree));
    std::vector<Tensor> held;
    OP_REQUIRES_OK(context, copies_.Get(context, 5, &held, &tree.class_row));
    OP_REQUIRES_OK(context, copies_.Get(context, 6, &held, &tree.node_start));
    OP_REQUIRES_OK(context, copies_.Get(context, 7, &held, &tree.node_row));
    OP_REQUIRES_OK(context, copies_.Get(context, 8, &held, &tree.node_parent));
    OP_REQUIRES_OK(context, copies_.Get(context, 9, &held, &tree.row_hint));

    const GpuStream stream = ContextStream(context);
    ContextScratch scratch(context);
    TreeLossPlan plan;
    const auto* ids = Data<Ttargets>(targets);
    OP_REQUIRES_OK(context, GpuStatus(PlanTreeLossCuda(tree, ids, WeightsOf(weights), tokens, dim, &scratch,
                                                       stream, &plan)));
    if (plan.status != TreeStatus::kOk) {
      Ttargets target = 0;
      if (plan.bad_position >= 0) {
        OP_REQUIRES_OK(context,
                       GpuStatus(CopyToHostCuda(ids + plan.bad_position, sizeof(target), &target, stream)));
      }
      OP_REQUIRES_OK(context, BadPairs(plan.status, num_classes_ > 0 ? num_classes_ : tree.classes, target,
                                       plan.bad_position));
    }
    const bool save = plan.probs <= max_saved_bytes_ / static_cast<int64_t>(sizeof(float));
    const int64_t sizes[] = {tokens,          plan.pairs, plan.pairs,           plan.groups,
                             plan.groups + 1, plan.pairs, save ? plan.probs : 0};
    Tensor *out[7], storage;
    for (int i = 0; i < 7; ++i) OP_REQUIRES_OK(context, context->allocate_output(i, {sizes[i]}, &out[i]));
    const float* values;
    OP_REQUIRES_OK(context, FloatHidden<Thidden>(context, hidden, &storage, &values));
    const TreeLossOutputs outputs{Data<float>(out[0]),
                                  Data<int32_t>(out[1]),
                                  Data<int32_t>(out[2]),
                                  Data<int32_t>(out[3]),
                                  Data<int32_t>(out[4]),
                                  Data<float>(out[5]),
                                  save ? Data<float>(out[6]) : nullptr};
    OP_REQUIRES_OK(
        context, GpuStatus(TreeSoftmaxLossCuda(plan, tree, TableOf<T>(variables), values, WeightsOf(weights),
                                               tokens, outputs, max_saved_bytes_, &scratch, stream)));
  }

 private:
  bool use_bias_, forest_;
  int64_t max_saved_bytes_, num_classes_;
  DeviceCopies copies_;
};

template <typename T, typename Thidden>
class TreeSoftmaxGradGpuOp : public OpKernel {
 public:
  explicit TreeSoftmaxGradGpuOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("max_saved_bytes", &max_saved_bytes_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &hidden = context->input(0), &weights = context->input(1), &grad_loss = context->input(2);
    LockedTable variables;
    OP_REQUIRES_OK(context, variables.Open(context, 3, tensorflow::DataTypeToEnum<T>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Check(hidden));
    const int64_t tokens = hidden.dim_size(0), dim = hidden.dim_size(1),
                  nodes = context->input(6).NumElements();
    OP_REQUIRES_OK(context, CheckVector(weights, tokens, "weights", true));
    OP_REQUIRES_OK(context, CheckVector(grad_loss, tokens, "grad_loss"));
    OP_REQUIRES_OK(context, CheckVector(context->input(6), nodes, "node_parent"));
    OP_REQUIRES_OK(context, CheckVector(context->input(5), nodes + 1, "node_start"));
    TreeArrays tree{nullptr, nullptr, nullptr, nullptr, nullptr, 0, nodes, variables.table().dim_size(0)};
    std::vector<Tensor> held;
    OP_REQUIRES_OK(context, copies_.Get(context, 5, &held, &tree.node_start));
    OP_REQUIRES_OK(context, copies_.Get(context, 6, &held, &tree.node_parent));
    TreeSaved saved;
    OP_REQUIRES_OK(context, OpenSaved(context, 7, &saved));

    const GpuStream stream = ContextStream(context);
    ContextScratch scratch(context);
    TreeGradPlan plan;
    OP_REQUIRES_OK(context,
                   GpuStatus(PlanTreeGradCuda(tree, saved, tokens, dim, !std::is_same<T, float>::value,
                                              &scratch, stream, &plan)));
    OP_REQUIRES(context,
                plan.ok && (saved.probs == nullptr || context->input(12).NumElements() == plan.work.probs),
                BadSaved());
    const int64_t unique = plan.work.rows;
    Tensor *d_hidden, *rows, *row_grads, *bias_grads, hidden_storage, d_hidden_storage;
    OP_REQUIRES_OK(context, context->allocate_output(0, hidden.shape(), &d_hidden));
    OP_REQUIRES_OK(context, context->allocate_output(1, {unique}, &rows));
    OP_REQUIRES_OK(context, context->allocate_output(2, {unique, dim}, &row_grads));
    OP_REQUIRES_OK(context, context->allocate_output(3, {use_bias_ ? unique : 0}, &bias_grads));
    const float* values;
    OP_REQUIRES_OK(context, FloatHidden<Thidden>(context, hidden, &hidden_storage, &values));
    constexpr bool kFloat = std::is_same<Thidden, float>::value;
    if (!kFloat)
      OP_REQUIRES_OK(context,
                     context->allocate_temp(tensorflow::DT_FLOAT, hidden.shape(), &d_hidden_storage));
    float* gradient = Data<float>(kFloat ? d_hidden : &d_hidden_storage);
    OP_REQUIRES_OK(context,
                   GpuStatus(TreeSoftmaxGradCuda(
                       plan, tree, TableOf<T>(variables), values, WeightsOf(weights), Data<float>(grad_loss),
                       tokens, saved, max_saved_bytes_, gradient, reinterpret_cast<int64_t*>(rows->data()),
                       Data<T>(row_grads), use_bias_ ? Data<float>(bias_grads) : nullptr, &scratch, stream)));
    if constexpr (!kFloat) {
      OP_REQUIRES_OK(context, GpuStatus(FromFloatsCuda(gradient, hidden.NumElements(),
                                                       Data<Thidden>(d_hidden), stream)));
    }
  }

 private:
  bool use_bias_;
  int64_t max_saved_bytes_;
  DeviceCopies copies_;
};

template <typename T, typename Thidden, typename Tids>
class TreeTopKGpuOp : public OpKernel {
 public:
  explicit TreeTopKGpuOp(OpKernelConstruction* context) : OpKernel(context) {
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
    const int32_t* row_child;
    std::vector<Tensor> held;
    OP_REQUIRES_OK(context, copies_.Get(context, 4, &held, &tree.node_start));
    OP_REQUIRES_OK(context, copies_.Get(context, 5, &held, &row_child));
    Tensor *log_probs, *ids, storage;
    OP_REQUIRES_OK(context, context->allocate_output(0, {queries, k}, &log_probs));
    OP_REQUIRES_OK(context, context->allocate_output(1, {queries, k}, &ids));
    const float* values;
    OP_REQUIRES_OK(context, FloatHidden<Thidden>(context, hidden, &storage, &values));
    ContextScratch scratch(context);
    bool ok;
    OP_REQUIRES_OK(context, GpuStatus(TreeTopKCuda(tree, row_child, TableOf<T>(variables), values, queries, k,
                                                   Data<float>(log_probs), Data<Tids>(ids), &scratch,
                                                   ContextStream(context), &ok)));
    OP_REQUIRES(context, ok, BadTopKTree());
  }

 private:
  bool use_bias_;
  DeviceCopies copies_;
};

}  // namespace

// A variable's handle lies in the memory of the host, a tensor on the device.
#define LARGEOUT_HANDLES \
  .HostMemory("table").HostMemory("bias").TypeConstraint<tensorflow::ResourceHandle>("Ttable")
#define LARGEOUT_TENSORS(T) .TypeConstraint<T>("Ttable")
#define LARGEOUT_REGISTER(T, Thidden)                     \
  LARGEOUT_REGISTER_GRAD(T, Thidden, LARGEOUT_HANDLES)    \
  LARGEOUT_REGISTER_GRAD(T, Thidden, LARGEOUT_TENSORS(T)) \
  LARGEOUT_REGISTER_IDS(T, Thidden, int32_t)              \
  LARGEOUT_REGISTER_IDS(T, Thidden, int64_t)
#define LARGEOUT_REGISTER_GRAD(T, Thidden, TABLE)                        \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeSoftmaxGrad")               \
                              .Device(tensorflow::DEVICE_GPU)            \
                              .HostMemory("node_start")                  \
                              .HostMemory("node_parent")                 \
                              .TypeConstraint<T>("dtype")                \
                              .TypeConstraint<Thidden>("Thidden") TABLE, \
                          TreeSoftmaxGradGpuOp<T, Thidden>);
#define LARGEOUT_REGISTER_IDS(T, Thidden, Tids)                   \
  LARGEOUT_REGISTER_LOSS(T, Thidden, Tids, LARGEOUT_HANDLES)      \
  LARGEOUT_REGISTER_LOSS(T, Thidden, Tids, LARGEOUT_TENSORS(T))   \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeTopK")               \
                              .Device(tensorflow::DEVICE_GPU)     \
                              .HostMemory("k")                    \
                              .HostMemory("table")                \
                              .HostMemory("bias")                 \
                              .HostMemory("node_start")           \
                              .HostMemory("row_child")            \
                              .TypeConstraint<T>("dtype")         \
                              .TypeConstraint<Thidden>("Thidden") \
                              .TypeConstraint<Tids>("out_type"),  \
                          TreeTopKGpuOp<T, Thidden, Tids>);
#define LARGEOUT_REGISTER_LOSS(T, Thidden, Tids, TABLE)                \
  REGISTER_KERNEL_BUILDER(Name("Largeout>TreeSoftmaxLoss")             \
                              .Device(tensorflow::DEVICE_GPU)          \
                              .HostMemory("class_row")                 \
                              .HostMemory("node_start")                \
                              .HostMemory("node_row")                  \
                              .HostMemory("node_parent")               \
                              .HostMemory("row_hint")                  \
                              .TypeConstraint<T>("dtype")              \
                              .TypeConstraint<Thidden>("Thidden")      \
                              .TypeConstraint<Tids>("Ttargets") TABLE, \
                          TreeSoftmaxLossGpuOp<T, Thidden, Tids>);
LARGEOUT_REGISTER(float, float)
LARGEOUT_REGISTER(float, Eigen::bfloat16)
LARGEOUT_REGISTER(Eigen::bfloat16, float)
LARGEOUT_REGISTER(Eigen::bfloat16, Eigen::bfloat16)

}  // namespace largeout
#endif  // LARGEOUT_CUDA
