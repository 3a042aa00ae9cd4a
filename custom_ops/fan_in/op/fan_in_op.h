// Helpers of the kernels of fan_in: finding, locking and checking variables and inputs. Looks at shapes only,
// never at the memory of tensors that may be on a GPU.
#ifndef LARGEOUT_FAN_IN_FAN_IN_OP_H_
#define LARGEOUT_FAN_IN_FAN_IN_OP_H_

#include "common/op/locked_variables_op.h"
#include "common/op/shapes_op.h"
#include "fan_in/fan_in.h"
#include "fan_in/fan_in_random.h"

namespace largeout {

// The variables of a layer behind three consecutive handles, with the slots of an update.
class FanInVariables {
 public:
  enum Update { kNothing, kWeights, kAll };  // weights, bias and slots; or the indices too

  // weights, indices and bias at inputs at .. at + 2; slots at slots_at .. slots_at + slots.
  absl::Status Find(tensorflow::OpKernelContext* context, int at, tensorflow::DataType dtype,
                    tensorflow::DataType index_dtype, bool use_bias, Update update = kNothing,
                    int slots_at = 0, int slots = 0) {
    const auto access = update == kNothing ? LockedVariables::kRead : LockedVariables::kWrite;
    TF_RETURN_IF_ERROR(variables_.Find(context, at, dtype, "weights", access));
    TF_RETURN_IF_ERROR(variables_.Find(context, at + 1, index_dtype, "indices",
                                       update == kAll ? LockedVariables::kWrite : LockedVariables::kRead));
    if (use_bias) TF_RETURN_IF_ERROR(variables_.Find(context, at + 2, tensorflow::DT_FLOAT, "bias", access));
    first_slot_ = variables_.size();
    for (int i = 0; i < slots; ++i) {
      TF_RETURN_IF_ERROR(variables_.Find(context, slots_at + i, tensorflow::DT_FLOAT, "slots", access));
    }
    return absl::OkStatus();
  }

  // Locked from here until this object goes. From then on dense reads of those that are updated copy, so that
  // none of them can see an update half done.
  template <typename Call>
  absl::Status Lock(OpCall<Call>* call) {
    TF_RETURN_IF_ERROR(variables_.CheckDifferent("`weights`, `indices`, `bias` and `slots`"));
    variables_.Lock();
    return variables_.Own(call);
  }

  // With the locks held: the shapes of the variables. The first `of_weights` slots are those of the weights.
  absl::Status Check(int64_t num_inputs, int of_weights = 0) const {
    const tensorflow::TensorShape& shape = weights().shape();
    if (shape.dims() != 2 || shape.dim_size(0) > INT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`weights` must have the shape [classes, fan_in], less than 2^31 classes. Received: shape ",
          shape.DebugString()));
    }
    TF_RETURN_IF_ERROR(CheckShape(indices(), "indices", shape));
    const tensorflow::TensorShape vector({shape.dim_size(0)});
    if (bias() != nullptr) TF_RETURN_IF_ERROR(CheckShape(*bias(), "bias", vector));
    for (int i = first_slot_; i < variables_.size(); ++i) {
      TF_RETURN_IF_ERROR(CheckShape(variables_[i], "slots", i - first_slot_ < of_weights ? shape : vector));
    }
    if (num_inputs >= 0 && fan_in() > num_inputs) {
      return absl::InvalidArgumentError(
          absl::StrCat("`weights` must have at most as many connections a class as there are "
                       "inputs, ",
                       num_inputs, ". Received: shape ", shape.DebugString()));
    }
    return absl::OkStatus();
  }

  const tensorflow::Tensor& weights() const { return variables_[0]; }
  const tensorflow::Tensor& indices() const { return variables_[1]; }
  const tensorflow::Tensor* bias() const { return first_slot_ > 2 ? &variables_[2] : nullptr; }
  // Those that are updated.
  tensorflow::Tensor* weights() { return variables_.writable(0); }
  tensorflow::Tensor* indices() { return variables_.writable(1); }
  tensorflow::Tensor* bias() { return first_slot_ > 2 ? variables_.writable(2) : nullptr; }
  tensorflow::Tensor* slot(int i) { return variables_.writable(first_slot_ + i); }
  int64_t classes() const { return weights().dim_size(0); }
  int64_t fan_in() const { return weights().dim_size(1); }

  // T and Id are TensorFlow's types.
  template <typename T, typename Id>
  auto Layer(int64_t num_inputs) const {
    return FanInLayer<typename KernelType<T>::type, Id>{Data<T>(weights()),
                                                        Data<Id>(indices()),
                                                        bias() != nullptr ? Data<float>(*bias()) : nullptr,
                                                        classes(),
                                                        fan_in(),
                                                        num_inputs};
  }

 private:
  LockedVariables variables_;
  int first_slot_ = 0;
};

// `bad`: the result of a kernel. late: of an earlier call.
inline absl::Status BadIndex(int64_t bad, int64_t num_inputs, bool late = false) {
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`indices` must be in [0, ", num_inputs, "), the columns of `inputs`. ",
                   "Received: another value in row ", bad,
                   late ? " in an earlier call (a GPU's check is not waited for: "
                          "`late_errors`)"
                        : ""));
}

inline absl::Status CheckInputs(const tensorflow::Tensor& inputs) {
  if (inputs.dims() == 2 && inputs.dim_size(0) <= INT32_MAX && inputs.dim_size(1) <= INT32_MAX)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`inputs` must have the shape [batch, inputs], each less than 2^31. Received: shape ",
                   inputs.shape().DebugString()));
}

// The tensors of a loss op, at inputs 0 .. 4: inputs, labels, row_splits, label_weights, classes. All but
// inputs are on the host.
struct FanInLossInputs {
  explicit FanInLossInputs(tensorflow::OpKernelContext* context)
      : inputs(context->input(0)),
        labels(context->input(1)),
        row_splits(context->input(2)),
        label_weights(context->input(3)),
        classes(context->input(4)) {}

  absl::Status Check(int64_t rows) const {
    TF_RETURN_IF_ERROR(CheckInputs(inputs));
    if (labels.dims() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("`labels` must have rank 1. Received: shape ", labels.shape().DebugString()));
    }
    TF_RETURN_IF_ERROR(CheckShape(row_splits, "row_splits", {inputs.dim_size(0) + 1}));
    TF_RETURN_IF_ERROR(CheckShape(label_weights, "label_weights", {labels.dim_size(0)}, true));
    TF_RETURN_IF_ERROR(CheckShape(classes, "classes", {2}));
    const int64_t first = classes.vec<int64_t>()(0), all = classes.vec<int64_t>()(1);
    if (first < 0 || all < rows || first > all - rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("`first_class` must be at least 0 and `num_classes` at least first_class + ", rows,
                       ", the rows of `weights`. Received: ", first, " and ", all));
    }
    return absl::OkStatus();
  }

  int64_t first_class() const { return classes.vec<int64_t>()(0); }

  absl::Status Sort(const FanInBatch& batch, int64_t rows, FanInPositives* positives) const {
    return labels.dtype() == tensorflow::DT_INT32 ? SortAs<int32_t>(batch, rows, positives)
                                                  : SortAs<int64_t>(batch, rows, positives);
  }

  const tensorflow::Tensor &inputs, &labels, &row_splits, &label_weights, &classes;

 private:
  template <typename Label>
  absl::Status SortAs(const FanInBatch& batch, int64_t rows, FanInPositives* positives) const {
    const FanInLabels<Label> lists{
        labels.flat<Label>().data(),
        reinterpret_cast<const int64_t*>(row_splits.flat<int64_t>().data()),
        label_weights.NumElements() > 0 ? label_weights.flat<float>().data() : nullptr,
        labels.dim_size(0),
        first_class(),
        static_cast<int64_t>(classes.vec<int64_t>()(1))};
    int64_t at;
    switch (SortLabels(lists, batch, rows, positives, &at)) {
      case FanInLabelStatus::kOk:
        return absl::OkStatus();
      case FanInLabelStatus::kBadLabel:
        return absl::InvalidArgumentError(absl::StrCat("`labels` must be in [0, ", lists.num_classes,
                                                       "), or -1 for no label. ", "Received: ", lists.ids[at],
                                                       " at position ", at));
      case FanInLabelStatus::kBadSplits:
        break;
    }
    return absl::InvalidArgumentError(absl::StrCat("`row_splits` must ascend from 0 to ", lists.count,
                                                   ", the number of labels. Received: ", lists.row_splits[at],
                                                   " at position ", at));
  }
};

// The inputs at .. at + 3 of the backward ops: grad_loss, lse, mass, active, on the op's device.
struct FanInSaved {
  FanInSaved(tensorflow::OpKernelContext* context, int at)
      : grad_loss(context->input(at)),
        lse(context->input(at + 1)),
        mass(context->input(at + 2)),
        active(context->input(at + 3)) {}

  absl::Status Check(const FanInBatch& batch, FanInLoss loss, int64_t rows) const {
    const bool softmax = loss == FanInLoss::kSoftmax;
    TF_RETURN_IF_ERROR(CheckShape(grad_loss, "grad_loss", {batch.size}));
    TF_RETURN_IF_ERROR(CheckShape(lse, "lse", {softmax ? batch.size : 0}));
    TF_RETURN_IF_ERROR(CheckShape(mass, "mass", {softmax ? batch.size : 0}));
    return CheckShape(active, "active",
                      {loss == FanInLoss::kSquaredHinge ? FanInActiveBytes(batch, rows) : 0});
  }

  const tensorflow::Tensor &grad_loss, &lse, &mass, &active;
};

// Lays the inputs out on the device of the call.
template <typename Device>
absl::Status LayOut(const OpCall<typename Device::Call>& call, const tensorflow::Tensor& inputs,
                    Device* device) {
  return call.Status(inputs.dtype() == tensorflow::DT_FLOAT ? device->LayOut(Data<float>(inputs))
                                                            : device->LayOut(Data<Eigen::bfloat16>(inputs)));
}

// The backward pass; d_inputs has no elements where no gradient of the inputs is wanted.
template <typename Device, typename T, typename Id>
absl::Status Backward(const OpCall<typename Device::Call>& call, Device* device,
                      const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                      const FanInStep<T>& step, bool input_gradient, tensorflow::Tensor* d_inputs) {
  int64_t bad;
  TF_RETURN_IF_ERROR(call.Status(device->Backward(layer, gradients, step, input_gradient, &bad)));
  TF_RETURN_IF_ERROR(BadIndex(bad, layer.inputs));
  if (!input_gradient) return absl::OkStatus();
  return call.Status(d_inputs->dtype() == tensorflow::DT_FLOAT
                         ? device->LayBack(Data<float>(d_inputs))
                         : device->LayBack(Data<Eigen::bfloat16>(d_inputs)));
}

// Output 0 of the backward ops, [0, 0] where no gradient of the inputs is wanted.
inline absl::Status AllocateInputGradient(tensorflow::OpKernelContext* context, const FanInBatch& batch,
                                          bool wanted, tensorflow::Tensor** d_inputs) {
  return context->allocate_output(0, {wanted ? batch.size : 0, wanted ? batch.inputs : 0}, d_inputs);
}

// Outputs 1 and 2, the gradients of weights and bias: where `step` writes them. Without rows where they are
// not wanted.
template <typename T>
absl::Status AllocateGradients(tensorflow::OpKernelContext* context, const FanInVariables& variables,
                               bool use_bias, bool wanted, FanInStep<typename KernelType<T>::type>* step) {
  tensorflow::Tensor *d_weights, *d_bias;
  TF_RETURN_IF_ERROR(
      context->allocate_output(1, {wanted ? variables.classes() : 0, variables.fan_in()}, &d_weights));
  TF_RETURN_IF_ERROR(context->allocate_output(2, {wanted && use_bias ? variables.classes() : 0}, &d_bias));
  if (!wanted) return absl::OkStatus();
  step->weights = Data<T>(d_weights);
  step->bias = use_bias ? Data<float>(d_bias) : nullptr;
  return absl::OkStatus();
}

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_OP_H_
