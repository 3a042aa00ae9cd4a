// The kernels of the embedding ops on any device: validate, allocate, call. Device: EmbeddingCpu or
// EmbeddingGpu.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_KERNEL_OP_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_KERNEL_OP_H_

#include "common/op/locked_variables_op.h"
#include "embedding/op/embedding_op.h"

namespace largeout {

template <typename Device>
class EmbeddingOpBase : public GuardedOp {
 public:
  explicit EmbeddingOpBase(tensorflow::OpKernelConstruction* context)
      : GuardedOp(context), attributes_(context) {}

 protected:
  // The table at input 0, locked: behind the handle of a variable, or itself.
  template <typename T>
  static absl::Status OpenTable(tensorflow::OpKernelContext* context, LockedVariables* table) {
    TF_RETURN_IF_ERROR(table->Find(context, 0, tensorflow::DataTypeToEnum<T>::value, "table"));
    table->Lock();
    if ((*table)[0].dims() == 2) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("`table` must have shape [rows, dim]. Received: shape ",
                                                   (*table)[0].shape().DebugString()));
  }

  // Checks everything about the bags at inputs at .. at + 2, values included. `rows`: the rows of the table. A gradient,
  // `of_lookup`, whose errors may come late leaves those of values to the lookup: its kernels bear them.
  template <typename Id>
  absl::Status CheckedBags(const OpCall<typename Device::Call>& call, Device* device, int at, int64_t rows,
                           Bags<Id>* bags, tensorflow::TensorShape* leading, bool of_lookup = false) const {
    tensorflow::OpKernelContext* context = call.context();
    const BagInputs in{context->input(at), context->input(at + 1), context->input(at + 2)};
    TF_RETURN_IF_ERROR(attributes_.ToBags(in, bags, leading));
    if (kMayBeLate<typename Device::Call> && of_lookup && attributes_.late()) return absl::OkStatus();
    BadBags bad;
    TF_RETURN_IF_ERROR(call.Status(device->Check(*bags, attributes_.error() ? rows : -1, &bad)));
    if (bad.late) return LateBags(bad);
    if (bad.split >= 0) return BadSplit(bad.split, bad.value, bags->num_ids);
    if (bad.id >= 0) return BadId(in.ids.shape(), bad.id, bad.value, rows);
    return absl::OkStatus();
  }

  // What a gradient of rows has: bags at inputs 0 .. 2, grad [leading..., dim] and the number of rows.
  template <typename Id>
  absl::Status GradInputs(const OpCall<typename Device::Call>& call, Device* device, Bags<Id>* bags,
                          int64_t* rows, int64_t* dim) const {
    const tensorflow::TensorShape& grad = call.context()->input(3).shape();
    tensorflow::TensorShape leading;
    TF_RETURN_IF_ERROR(NumRows(call.context()->input(4), rows));
    TF_RETURN_IF_ERROR(CheckedBags(call, device, 0, *rows, bags, &leading, true));
    TF_RETURN_IF_ERROR(CheckGradShape(grad, leading, -1));
    *dim = grad.dim_size(grad.dims() - 1);
    return absl::OkStatus();
  }

  const EmbeddingAttributes attributes_;
};

template <typename Device, typename T, typename Id>
class EmbeddingLookupOp : public EmbeddingOpBase<Device> {
 public:
  using EmbeddingOpBase<Device>::EmbeddingOpBase;

  void Run(tensorflow::OpKernelContext* context) override {
    LockedVariables table;
    OP_REQUIRES_OK(context, this->template OpenTable<T>(context, &table));
    const int64_t rows = table[0].dim_size(0), dim = table[0].dim_size(1);
    OpCall<typename Device::Call> call(context, nullptr, this->attributes_.late() ? &late_ : nullptr);
    Device device(call.get());
    Bags<Id> bags;
    tensorflow::TensorShape leading, shape;
    OP_REQUIRES_OK(context, this->CheckedBags(call, &device, 1, rows, &bags, &leading));
    OP_REQUIRES_OK(context, LookupShape(leading, dim, &shape));
    tensorflow::Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    if (output->NumElements() == 0) return;  // of 2^40 empty bags, say
    OP_REQUIRES_OK(context, call.Status(device.Lookup(Data<T>(table[0]), rows, dim, bags,
                                                      this->attributes_.combiner(), Data<T>(output))));
  }

 private:
  typename Device::Call::Late late_;
};

template <typename Device, typename T, typename Id>
class EmbeddingGradOp : public EmbeddingOpBase<Device> {
 public:
  using EmbeddingOpBase<Device>::EmbeddingOpBase;

  void Run(tensorflow::OpKernelContext* context) override {
    OpCall<typename Device::Call> call(context);
    Device device(call.get());
    Bags<Id> bags;
    int64_t rows, dim;
    OP_REQUIRES_OK(context, this->GradInputs(call, &device, &bags, &rows, &dim));
    tensorflow::Tensor *unique_ids, *sums;
    if (bags.num_ids == 0) {  // however many bags
      OP_REQUIRES_OK(context, context->allocate_output(0, {0}, &unique_ids));
      OP_REQUIRES_OK(context, context->allocate_output(1, {0, dim}, &sums));
      return;
    }
    OP_REQUIRES_OK(context, call.Status(device.PlanGrad(bags, this->attributes_.combiner(), rows)));
    OP_REQUIRES_OK(context, context->allocate_output(0, {device.num_unique()}, &unique_ids));
    OP_REQUIRES_OK(context, context->allocate_output(1, {device.num_unique(), dim}, &sums));
    OP_REQUIRES_OK(context, call.Status(device.GradRows(Data<T>(context->input(3)), dim,
                                                        Data<int64_t>(unique_ids), Data<T>(sums))));
  }
};

// Of EmbeddingCombine: an array of all rows.
template <typename Device, typename T, typename Id>
class EmbeddingCombineGradOp : public EmbeddingOpBase<Device> {
 public:
  using EmbeddingOpBase<Device>::EmbeddingOpBase;

  void Run(tensorflow::OpKernelContext* context) override {
    OpCall<typename Device::Call> call(context);
    Device device(call.get());
    Bags<Id> bags;
    int64_t rows, dim;
    OP_REQUIRES_OK(context, this->GradInputs(call, &device, &bags, &rows, &dim));
    tensorflow::TensorShape shape({rows});
    tensorflow::Tensor* sums;
    OP_REQUIRES_OK(context, LookupShape(shape, dim, &shape));
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &sums));
    if (sums->NumElements() == 0) return;
    OP_REQUIRES_OK(context,
                   call.Status(device.GradOfAllRows(bags, this->attributes_.combiner(), rows,
                                                    Data<T>(context->input(3)), dim, Data<T>(sums))));
  }
};

template <typename Device, typename T, typename Id>
class EmbeddingWeightsGradOp : public EmbeddingOpBase<Device> {
 public:
  using EmbeddingOpBase<Device>::EmbeddingOpBase;

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& grad = context->input(4);
    LockedVariables table;
    OP_REQUIRES_OK(context, this->template OpenTable<T>(context, &table));
    const int64_t rows = table[0].dim_size(0), dim = table[0].dim_size(1);
    OpCall<typename Device::Call> call(context);
    Device device(call.get());
    Bags<Id> bags;
    tensorflow::TensorShape leading;
    OP_REQUIRES_OK(context, this->CheckedBags(call, &device, 1, rows, &bags, &leading, true));
    OP_REQUIRES_OK(context, CheckGradShape(grad.shape(), leading, dim));
    tensorflow::Tensor* weights_grad;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(1).shape(), &weights_grad));
    if (weights_grad->NumElements() == 0) return;
    OP_REQUIRES_OK(context, call.Status(device.WeightsGrad(Data<T>(table[0]), rows, dim, bags,
                                                           this->attributes_.combiner(), Data<T>(grad),
                                                           Data<float>(weights_grad))));
  }
};

// Kernel<Launcher, T, Id> as the kernel of `name` on DEVICE, for all types. HOST is nothing, or the inputs that
// are in host memory.
#define LARGEOUT_EMBEDDING_TYPES(name, DEVICE, Kernel, Launcher, T, Id, HOST)             \
  REGISTER_KERNEL_BUILDER(Name("Largeout>" name)                                          \
                              .Device(tensorflow::DEVICE) HOST.TypeConstraint<T>("dtype") \
                              .TypeConstraint<Id>("Tids"),                                \
                          Kernel<Launcher, T, Id>)
#define LARGEOUT_EMBEDDING(name, DEVICE, Kernel, Launcher, HOST)                            \
  LARGEOUT_EMBEDDING_TYPES(name, DEVICE, Kernel, Launcher, float, int32_t, HOST);           \
  LARGEOUT_EMBEDDING_TYPES(name, DEVICE, Kernel, Launcher, float, int64_t, HOST);           \
  LARGEOUT_EMBEDDING_TYPES(name, DEVICE, Kernel, Launcher, Eigen::bfloat16, int32_t, HOST); \
  LARGEOUT_EMBEDDING_TYPES(name, DEVICE, Kernel, Launcher, Eigen::bfloat16, int64_t, HOST)

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_KERNEL_OP_H_
