#include "embedding/embedding_op.h"

#if LARGEOUT_CUDA
#include "embedding/embedding_cuda.h"

namespace largeout {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

GpuStream Stream(OpKernelContext* context) { return context->eigen_gpu_device().stream(); }

absl::Status CudaStatus(int error) {
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA: ", CudaErrorName(error)));
}

absl::Status Scratch(OpKernelContext* context, int64_t bytes, Tensor* memory) {
  return context->allocate_temp(tensorflow::DT_UINT8, TensorShape({std::max<int64_t>(bytes, 1)}), memory);
}

// Checks everything about the bags. The values of row_splits and ids are checked on the GPU, and the verdict is waited for;
// with dense ids and out_of_range="zero" nothing is to be checked and nothing waits.
template <typename Id>
absl::Status CheckedBags(OpKernelContext* context, const EmbeddingAttributes& attributes, const BagInputs& in, int64_t rows,
                         Bags<Id>* bags, TensorShape* leading) {
  TF_RETURN_IF_ERROR(attributes.ToBags(in, bags, leading));
  Tensor checks;
  TF_RETURN_IF_ERROR(Scratch(context, 2 * sizeof(int64_t), &checks));
  BadBags bad;
  TF_RETURN_IF_ERROR(CudaStatus(CheckBagsCuda(*bags, attributes.error() ? rows : -1,
                                              static_cast<int64_t*>(checks.data()), Stream(context), &bad)));
  if (bad.split >= 0) {
    int64_t split = 0;
    TF_RETURN_IF_ERROR(CudaStatus(CopyToHostCuda(bags->row_splits + bad.split, sizeof(split), &split, Stream(context))));
    return BadSplit(bad.split, split, bags->num_ids);
  }
  if (bad.id >= 0) {
    Id id = 0;
    TF_RETURN_IF_ERROR(CudaStatus(CopyToHostCuda(bags->ids + bad.id, sizeof(id), &id, Stream(context))));
    return BadId(in.ids.shape(), bad.id, id, rows);
  }
  return absl::OkStatus();
}

template <typename T, typename Id>
class EmbeddingLookupOp : public OpKernel {
 public:
  explicit EmbeddingLookupOp(OpKernelConstruction* context) : OpKernel(context), attributes_(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(context, LookupTable(context, 0, tensorflow::DataTypeToEnum<T>::value, "table", &variable));
    tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& table = *variable->tensor();
    OP_REQUIRES_OK(context, CheckTableRank(table));
    const int64_t rows = table.dim_size(0), dim = table.dim_size(1);
    Bags<Id> bags;
    TensorShape leading;
    const BagInputs in{context->input(1), context->input(2), context->input(3)};
    OP_REQUIRES_OK(context, CheckedBags(context, attributes_, in, rows, &bags, &leading));

    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, WithDim(leading, dim), &output));
    OP_REQUIRES_OK(context, CudaStatus(EmbeddingLookupCuda(Data<T>(table), rows, dim, bags, attributes_.combiner(),
                                                           Data<T>(output), Stream(context))));
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

    const GpuStream stream = Stream(context);
    Tensor workspace, scratch;
    OP_REQUIRES_OK(context,
                   Scratch(context, EmbeddingGradWorkspaceCuda(bags, attributes_.combiner(), rows), &workspace));
    EmbeddingGradPlanCuda plan;
    OP_REQUIRES_OK(context, CudaStatus(PlanEmbeddingGradCuda(bags, attributes_.combiner(), rows, workspace.data(), stream,
                                                             &plan)));
    Tensor *unique_ids, *sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({plan.num_unique}), &unique_ids));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({plan.num_unique, dim}), &sums));
    OP_REQUIRES_OK(context, Scratch(context, EmbeddingGradScratchCuda(plan, dim), &scratch));
    OP_REQUIRES_OK(context, CudaStatus(EmbeddingGradRowsCuda(
                                plan, Data<T>(grad), dim, scratch.data(),
                                reinterpret_cast<int64_t*>(unique_ids->flat<tensorflow::int64>().data()), Data<T>(sums),
                                stream)));
  }

 private:
  const EmbeddingAttributes attributes_;
};

template <typename T, typename Id>
class EmbeddingWeightsGradOp : public OpKernel {
 public:
  explicit EmbeddingWeightsGradOp(OpKernelConstruction* context) : OpKernel(context), attributes_(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(context, LookupTable(context, 0, tensorflow::DataTypeToEnum<T>::value, "table", &variable));
    tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor &table = *variable->tensor(), &grad = context->input(4);
    OP_REQUIRES_OK(context, CheckTableRank(table));
    const int64_t rows = table.dim_size(0), dim = table.dim_size(1);
    Bags<Id> bags;
    TensorShape leading;
    const BagInputs in{context->input(1), context->input(2), context->input(3)};
    OP_REQUIRES_OK(context, CheckedBags(context, attributes_, in, rows, &bags, &leading));
    OP_REQUIRES_OK(context, CheckGradShape(grad.shape(), leading, dim));

    Tensor* weights_grad;
    OP_REQUIRES_OK(context, context->allocate_output(0, in.ids.shape(), &weights_grad));
    OP_REQUIRES_OK(context,
                   CudaStatus(EmbeddingWeightsGradCuda(Data<T>(table), rows, dim, bags, attributes_.combiner(), Data<T>(grad),
                                                       weights_grad->flat<float>().data(), Stream(context))));
  }

 private:
  const EmbeddingAttributes attributes_;
};

#define LARGEOUT_REGISTER(Name_, host_input, T, Id, KernelId)              \
  REGISTER_KERNEL_BUILDER(Name("Largeout>" #Name_)                         \
                              .Device(tensorflow::DEVICE_GPU)              \
                              .HostMemory(host_input)                      \
                              .TypeConstraint<T>("dtype")                  \
                              .TypeConstraint<Id>("Tids"),                 \
                          Name_##Op<T, KernelId>)
#define LARGEOUT_REGISTER_ALL(T, Id, KernelId)                     \
  LARGEOUT_REGISTER(EmbeddingLookup, "table", T, Id, KernelId);    \
  LARGEOUT_REGISTER(EmbeddingGrad, "num_rows", T, Id, KernelId);   \
  LARGEOUT_REGISTER(EmbeddingWeightsGrad, "table", T, Id, KernelId)
LARGEOUT_REGISTER_ALL(float, tensorflow::int32, int32_t);
LARGEOUT_REGISTER_ALL(float, tensorflow::int64, int64_t);
LARGEOUT_REGISTER_ALL(Eigen::bfloat16, tensorflow::int32, int32_t);
LARGEOUT_REGISTER_ALL(Eigen::bfloat16, tensorflow::int64, int64_t);
#undef LARGEOUT_REGISTER_ALL
#undef LARGEOUT_REGISTER

}  // namespace
}  // namespace largeout
#endif  // LARGEOUT_CUDA
