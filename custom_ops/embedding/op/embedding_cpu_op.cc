#include "embedding/op/embedding_op.h"

namespace largeout {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Checks everything about the bags, values included. `rows` is the number of rows of the table.
template <typename Id>
absl::Status CheckedBags(const EmbeddingAttributes& attributes, const BagInputs& in, int64_t rows, Bags<Id>* bags,
                         TensorShape* leading) {
  TF_RETURN_IF_ERROR(attributes.ToBags(in, bags, leading));
  if (bags->row_splits != nullptr) {
    const int64_t bad = FirstBadSplit(bags->row_splits, bags->num_bags + 1, bags->num_ids);
    if (bad >= 0) return BadSplit(bad, bags->row_splits[bad], bags->num_ids);
  }
  if (attributes.error()) {
    const int64_t bad = FirstBadId(bags->ids, bags->num_ids, rows);
    if (bad >= 0) return BadId(in.ids.shape(), bad, bags->ids[bad], rows);
  }
  return absl::OkStatus();
}

template <typename T, typename Id, typename Table>
class EmbeddingLookupOp : public OpKernel {
 public:
  explicit EmbeddingLookupOp(OpKernelConstruction* context) : OpKernel(context), attributes_(context) {}

  void Compute(OpKernelContext* context) override {
    Table source;
    OP_REQUIRES_OK(context, source.Open(context));
    const Tensor& table = source.tensor();
    const int64_t rows = table.dim_size(0), dim = table.dim_size(1);
    Bags<Id> bags;
    TensorShape leading;
    const BagInputs in{context->input(1), context->input(2), context->input(3)};
    OP_REQUIRES_OK(context, CheckedBags(attributes_, in, rows, &bags, &leading));

    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, WithDim(leading, dim), &output));
    ContextParallel parallel(context);
    EmbeddingLookup(Data<T>(table), rows, dim, bags, attributes_.combiner(), Data<T>(output), &parallel);
  }

 private:
  const EmbeddingAttributes attributes_;
};

template <typename T, typename Id>
class EmbeddingGradOp : public OpKernel {
 public:
  explicit EmbeddingGradOp(OpKernelConstruction* context) : OpKernel(context), attributes_(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor &grad = context->input(3), &num_rows = context->input(4);
    int64_t rows;
    OP_REQUIRES_OK(context, NumRows(num_rows, &rows));
    Bags<Id> bags;
    TensorShape leading;
    const BagInputs in{context->input(0), context->input(1), context->input(2)};
    OP_REQUIRES_OK(context, CheckedBags(attributes_, in, rows, &bags, &leading));
    OP_REQUIRES_OK(context, CheckGradShape(grad.shape(), leading, -1));
    const int64_t dim = grad.dim_size(grad.dims() - 1);

    ContextParallel parallel(context);
    EmbeddingGradPlan plan;
    PlanEmbeddingGrad(bags, attributes_.combiner(), rows, &parallel, &plan);
    Tensor *unique_ids, *sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({plan.num_unique}), &unique_ids));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({plan.num_unique, dim}), &sums));
    EmbeddingGradRows(plan, Data<T>(grad), dim, reinterpret_cast<int64_t*>(unique_ids->flat<tensorflow::int64>().data()),
                      Data<T>(sums), &parallel);
  }

 private:
  const EmbeddingAttributes attributes_;
};

template <typename T, typename Id, typename Table>
class EmbeddingWeightsGradOp : public OpKernel {
 public:
  explicit EmbeddingWeightsGradOp(OpKernelConstruction* context) : OpKernel(context), attributes_(context) {}

  void Compute(OpKernelContext* context) override {
    Table source;
    OP_REQUIRES_OK(context, source.Open(context));
    const Tensor &table = source.tensor(), &grad = context->input(4);
    const int64_t rows = table.dim_size(0), dim = table.dim_size(1);
    Bags<Id> bags;
    TensorShape leading;
    const BagInputs in{context->input(1), context->input(2), context->input(3)};
    OP_REQUIRES_OK(context, CheckedBags(attributes_, in, rows, &bags, &leading));
    OP_REQUIRES_OK(context, CheckGradShape(grad.shape(), leading, dim));

    Tensor* weights_grad;
    OP_REQUIRES_OK(context, context->allocate_output(0, in.ids.shape(), &weights_grad));
    ContextParallel parallel(context);
    EmbeddingWeightsGrad(Data<T>(table), rows, dim, bags, attributes_.combiner(), Data<T>(grad),
                         weights_grad->flat<float>().data(), &parallel);
  }

 private:
  const EmbeddingAttributes attributes_;
};

#define LARGEOUT_REGISTER(name, T, Id, ...)                   \
  REGISTER_KERNEL_BUILDER(Name("Largeout>" name)              \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("dtype")     \
                              .TypeConstraint<Id>("Tids"),    \
                          __VA_ARGS__)
#define LARGEOUT_REGISTER_ALL(T, Id, KernelId)                                                                          \
  LARGEOUT_REGISTER("EmbeddingLookup", T, Id, EmbeddingLookupOp<T, KernelId, HandleTable<T>>);                          \
  LARGEOUT_REGISTER("EmbeddingGrad", T, Id, EmbeddingGradOp<T, KernelId>);                                              \
  LARGEOUT_REGISTER("EmbeddingWeightsGrad", T, Id, EmbeddingWeightsGradOp<T, KernelId, HandleTable<T>>);                \
  LARGEOUT_REGISTER("EmbeddingCombine", T, Id, EmbeddingLookupOp<T, KernelId, TensorTable<T>>);                         \
  LARGEOUT_REGISTER("EmbeddingCombineWeightsGrad", T, Id, EmbeddingWeightsGradOp<T, KernelId, TensorTable<T>>)
LARGEOUT_REGISTER_ALL(float, tensorflow::int32, int32_t);
LARGEOUT_REGISTER_ALL(float, tensorflow::int64, int64_t);
LARGEOUT_REGISTER_ALL(Eigen::bfloat16, tensorflow::int32, int32_t);
LARGEOUT_REGISTER_ALL(Eigen::bfloat16, tensorflow::int64, int64_t);
#undef LARGEOUT_REGISTER_ALL
#undef LARGEOUT_REGISTER

}  // namespace
}  // namespace largeout
