#include "embedding/op/embedding_op.h"

#if LARGEOUT_CUDA
#include "common/op/tf_gpu_op.h"
#include "embedding/cuda/embedding_cuda.h"

namespace largeout {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Checks everything about the bags. The values of row_splits and ids are checked on the GPU, and the verdict is waited for;
// with dense ids and out_of_range="zero" nothing is to be checked and nothing waits.
template <typename Id>
absl::Status CheckedBags(OpKernelContext* context, const EmbeddingAttributes& attributes, const BagInputs& in, int64_t rows,
                         Bags<Id>* bags, TensorShape* leading) {
  TF_RETURN_IF_ERROR(attributes.ToBags(in, bags, leading));
  Tensor checks;
  TF_RETURN_IF_ERROR(GpuWorkspace(context, 2 * sizeof(int64_t), &checks));
  BadBags bad;
  TF_RETURN_IF_ERROR(GpuStatus(CheckBagsCuda(*bags, attributes.error() ? rows : -1,
                                              static_cast<int64_t*>(checks.data()), ContextStream(context), &bad)));
  if (bad.split >= 0) {
    int64_t split = 0;
    TF_RETURN_IF_ERROR(GpuStatus(CopyToHostCuda(bags->row_splits + bad.split, sizeof(split), &split, ContextStream(context))));
    return BadSplit(bad.split, split, bags->num_ids);
  }
  if (bad.id >= 0) {
    Id id = 0;
    TF_RETURN_IF_ERROR(GpuStatus(CopyToHostCuda(bags->ids + bad.id, sizeof(id), &id, ContextStream(context))));
    return BadId(in.ids.shape(), bad.id, id, rows);
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
    OP_REQUIRES_OK(context, CheckedBags(context, attributes_, in, rows, &bags, &leading));

    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, WithDim(leading, dim), &output));
    OP_REQUIRES_OK(context, GpuStatus(EmbeddingLookupCuda(Data<T>(table), rows, dim, bags, attributes_.combiner(),
                                                           Data<T>(output), ContextStream(context))));
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
    OP_REQUIRES_OK(context, CheckedBags(context, attributes_, in, rows, &bags, &leading));
    OP_REQUIRES_OK(context, CheckGradShape(grad.shape(), leading, -1));
    const int64_t dim = grad.dim_size(grad.dims() - 1);

    const GpuStream stream = ContextStream(context);
    Tensor workspace, scratch;
    OP_REQUIRES_OK(context,
                   GpuWorkspace(context, EmbeddingGradWorkspaceCuda(bags, attributes_.combiner(), rows), &workspace));
    EmbeddingGradPlanCuda plan;
    OP_REQUIRES_OK(context, GpuStatus(PlanEmbeddingGradCuda(bags, attributes_.combiner(), rows, workspace.data(), stream,
                                                             &plan)));
    Tensor *unique_ids, *sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({plan.num_unique}), &unique_ids));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({plan.num_unique, dim}), &sums));
    OP_REQUIRES_OK(context, GpuWorkspace(context, EmbeddingGradScratchCuda(plan, dim), &scratch));
    OP_REQUIRES_OK(context, GpuStatus(EmbeddingGradRowsCuda(
                                plan, Data<T>(grad), dim, scratch.data(),
                                reinterpret_cast<int64_t*>(unique_ids->flat<tensorflow::int64>().data()), Data<T>(sums),
                                stream)));
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
    OP_REQUIRES_OK(context, CheckedBags(context, attributes_, in, rows, &bags, &leading));
    OP_REQUIRES_OK(context, CheckGradShape(grad.shape(), leading, dim));

    Tensor* weights_grad;
    OP_REQUIRES_OK(context, context->allocate_output(0, in.ids.shape(), &weights_grad));
    OP_REQUIRES_OK(context,
                   GpuStatus(EmbeddingWeightsGradCuda(Data<T>(table), rows, dim, bags, attributes_.combiner(), Data<T>(grad),
                                                       weights_grad->flat<float>().data(), ContextStream(context))));
  }

 private:
  const EmbeddingAttributes attributes_;
};

// `on_host` is either nothing or .HostMemory(input).
#define LARGEOUT_REGISTER(name, on_host, T, Id, ...)                  \
  REGISTER_KERNEL_BUILDER(Name("Largeout>" name)                      \
                              .Device(tensorflow::DEVICE_GPU) on_host \
                              .TypeConstraint<T>("dtype")             \
                              .TypeConstraint<Id>("Tids"),            \
                          __VA_ARGS__)
#define LARGEOUT_HOST(input) .HostMemory(input)
#define LARGEOUT_REGISTER_ALL(T, Id, KernelId)                                                                              \
  LARGEOUT_REGISTER("EmbeddingLookup", LARGEOUT_HOST("table"), T, Id, EmbeddingLookupOp<T, KernelId, HandleTable<T>>);      \
  LARGEOUT_REGISTER("EmbeddingGrad", LARGEOUT_HOST("num_rows"), T, Id, EmbeddingGradOp<T, KernelId>);                       \
  LARGEOUT_REGISTER("EmbeddingWeightsGrad", LARGEOUT_HOST("table"), T, Id,                                                  \
                    EmbeddingWeightsGradOp<T, KernelId, HandleTable<T>>);                                                   \
  LARGEOUT_REGISTER("EmbeddingCombine", , T, Id, EmbeddingLookupOp<T, KernelId, TensorTable<T>>);                           \
  LARGEOUT_REGISTER("EmbeddingCombineWeightsGrad", , T, Id, EmbeddingWeightsGradOp<T, KernelId, TensorTable<T>>)
LARGEOUT_REGISTER_ALL(float, tensorflow::int32, int32_t);
LARGEOUT_REGISTER_ALL(float, tensorflow::int64, int64_t);
LARGEOUT_REGISTER_ALL(Eigen::bfloat16, tensorflow::int32, int32_t);
LARGEOUT_REGISTER_ALL(Eigen::bfloat16, tensorflow::int64, int64_t);
#undef LARGEOUT_REGISTER_ALL
#undef LARGEOUT_HOST
#undef LARGEOUT_REGISTER

}  // namespace
}  // namespace largeout
#endif  // LARGEOUT_CUDA
