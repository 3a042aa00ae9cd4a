// What the CPU and GPU kernels of fan_in share: finding, locking and checking variables and inputs. Looks at
// shapes only, never at the memory of tensors that may lie on a GPU.
#ifndef LARGEOUT_FAN_IN_FAN_IN_OP_H_
#define LARGEOUT_FAN_IN_FAN_IN_OP_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/op/shapes_op.h"
#include "common/op/tf_op.h"
#include "fan_in/fan_in.h"
#include "fan_in/fan_in_random.h"

namespace largeout {

// The variables of a layer behind three consecutive handles, with the slots of an update. Locked while this
// object lives: for reading, those that are updated for writing; in the order of addresses, as every op locks
// them.
class FanInVariables {
 public:
  using Pointer = tensorflow::core::RefCountPtr<tensorflow::Var>;

  ~FanInVariables() {
    for (auto it = locked_.rbegin(); it != locked_.rend(); ++it) {
      if (it->second) {
        it->first->mu()->unlock();
      } else {
        it->first->mu()->unlock_shared();
      }
    }
  }

  // weights, indices and bias at inputs at .. at + 2; slots at slots_at .. slots_at + slots.
  absl::Status Find(tensorflow::OpKernelContext* context, int at, tensorflow::DataType dtype,
                    tensorflow::DataType index_dtype, bool use_bias, int slots_at = 0, int slots = 0) {
    TF_RETURN_IF_ERROR(LookupTable(context, at, dtype, "weights", &weights_));
    TF_RETURN_IF_ERROR(LookupTable(context, at + 1, index_dtype, "indices", &indices_));
    if (use_bias) TF_RETURN_IF_ERROR(LookupTable(context, at + 2, tensorflow::DT_FLOAT, "bias", &bias_));
    slots_.resize(slots);
    for (int i = 0; i < slots; ++i) {
      TF_RETURN_IF_ERROR(LookupTable(context, slots_at + i, tensorflow::DT_FLOAT, "slots", &slots_[i]));
    }
    return absl::OkStatus();
  }

  // weights, indices and `slots` slots of the weights at inputs 0, 1, 2 ..: what rewiring changes.
  absl::Status FindRewired(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                           tensorflow::DataType index_dtype, int slots) {
    return Find(context, 0, dtype, index_dtype, false, 2, slots);
  }

  // The variables that an update writes: weights, bias, slots.
  std::vector<tensorflow::Var*> updated() const {
    std::vector<tensorflow::Var*> all = {weights_.get()};
    if (bias_) all.push_back(bias_.get());
    for (const Pointer& slot : slots_) all.push_back(slot.get());
    return all;
  }

  absl::Status Lock(bool update, bool update_indices = false) {
    std::vector<std::pair<tensorflow::Var*, bool>> wanted = {{indices_.get(), update_indices}};
    for (tensorflow::Var* variable : updated()) wanted.emplace_back(variable, update);
    std::sort(wanted.begin(), wanted.end());
    for (size_t i = 1; i < wanted.size(); ++i) {
      if (wanted[i].first == wanted[i - 1].first) {
        return absl::InvalidArgumentError(
            "`weights`, `indices`, `bias` and `slots` must be different variables. Received: one of them "
            "twice");
      }
    }
    for (const auto& [variable, write] : wanted) {
      if (write) {
        variable->mu()->lock();
      } else {
        variable->mu()->lock_shared();
      }
      locked_.emplace_back(variable, write);
    }
    return absl::OkStatus();
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
    if (bias_) TF_RETURN_IF_ERROR(CheckShape(*bias_->tensor(), "bias", vector));
    for (size_t i = 0; i < slots_.size(); ++i) {
      TF_RETURN_IF_ERROR(
          CheckShape(*slots_[i]->tensor(), "slots", static_cast<int>(i) < of_weights ? shape : vector));
    }
    if (num_inputs >= 0 && fan_in() > num_inputs) {
      return absl::InvalidArgumentError(
          absl::StrCat("`weights` must have at most as many connections a class as there are "
                       "inputs, ",
                       num_inputs, ". Received: shape ", shape.DebugString()));
    }
    return absl::OkStatus();
  }

  const tensorflow::Tensor& weights() const { return *weights_->tensor(); }
  const tensorflow::Tensor& indices() const { return *indices_->tensor(); }
  tensorflow::Var* weights_variable() const { return weights_.get(); }
  tensorflow::Var* indices_variable() const { return indices_.get(); }
  tensorflow::Var* bias_variable() const { return bias_.get(); }
  tensorflow::Var* slot(int i) const { return slots_[i].get(); }
  int64_t classes() const { return weights().dim_size(0); }
  int64_t fan_in() const { return weights().dim_size(1); }

  // T and Id are TensorFlow's types.
  template <typename T, typename Id>
  auto Layer(int64_t num_inputs) const {
    return FanInLayer<typename KernelType<T>::type, Id>{
        Data<T>(weights()), Data<Id>(indices()), bias_ ? Data<float>(*bias_->tensor()) : nullptr, classes(),
        fan_in(),           num_inputs};
  }

 private:
  Pointer weights_, indices_, bias_;
  std::vector<Pointer> slots_;
  std::vector<std::pair<tensorflow::Var*, bool>> locked_;
};

// `bad`: the result of a kernel.
inline absl::Status BadIndex(int64_t bad, int64_t num_inputs) {
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`indices` must be in [0, ", num_inputs,
                                                 "), the columns of `inputs`. ",
                                                 "Received: another value in row ", bad));
}

inline absl::Status CheckInputs(const tensorflow::Tensor& inputs) {
  if (inputs.dims() == 2 && inputs.dim_size(0) <= INT32_MAX && inputs.dim_size(1) <= INT32_MAX)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`inputs` must have the shape [batch, inputs], each less than 2^31. Received: shape ",
                   inputs.shape().DebugString()));
}

// The tensors of a loss op, at inputs 0 .. 4: inputs, labels, row_splits, label_weights, classes. All but
// inputs lie on the host.
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

// What the backward ops read at inputs at .. at + 3: grad_loss, lse, mass, active, on the op's device.
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
