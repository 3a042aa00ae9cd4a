// Checks and inputs that the CPU and GPU kernels of tree_softmax share. Looks at shapes only, never at the
// memory of tensors.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_OP_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_OP_H_

#include <algorithm>
#include <cstdint>
#include <functional>

#include "common/op/tf_op.h"
#include "tree_softmax/tree_softmax.h"

namespace largeout {

// The table and bias at two consecutive inputs: tensors, or variables behind handles, which are locked
// against updates while this object lives (in the order of addresses, as updates lock them).
class LockedTable {
 public:
  ~LockedTable() {
    if (second_ != nullptr) second_->mu()->unlock_shared();
    if (first_ != nullptr) first_->mu()->unlock_shared();
  }

  absl::Status Open(tensorflow::OpKernelContext* context, int at, tensorflow::DataType dtype, bool use_bias) {
    const bool handle = context->input_dtype(at) == tensorflow::DT_RESOURCE;
    if (use_bias && handle != (context->input_dtype(at + 1) == tensorflow::DT_RESOURCE)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`table` and `bias` must both be handles of variables, or both tensors. Received: ",
          tensorflow::DataTypeString(context->input_dtype(at)), " and ",
          tensorflow::DataTypeString(context->input_dtype(at + 1))));
    }
    if (!handle) return OpenTensors(context, at, dtype, use_bias);
    TF_RETURN_IF_ERROR(LookupTable(context, at, dtype, "table", &table_variable_));
    if (use_bias)
      TF_RETURN_IF_ERROR(LookupTable(context, at + 1, tensorflow::DT_FLOAT, "bias", &bias_variable_));
    tensorflow::Var *first = table_variable_.get(), *second = bias_variable_.get();
    if (second != nullptr && std::less<tensorflow::Var*>()(second, first)) std::swap(first, second);
    first->mu()->lock_shared();
    first_ = first;
    if (second != nullptr && second != first) {
      second->mu()->lock_shared();
      second_ = second;
    }
    table_ = table_variable_->tensor();
    bias_ = use_bias ? bias_variable_->tensor() : nullptr;
    return absl::OkStatus();
  }

  const tensorflow::Tensor& table() const { return *table_; }
  const tensorflow::Tensor* bias() const { return bias_; }

  // hidden [T, d] against table [R, d], bias [R].
  absl::Status Check(const tensorflow::Tensor& hidden) const {
    if (table().dims() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`table` must have the shape [rows, dim]. Received: shape ", table().shape().DebugString()));
    }
    if (hidden.dims() != 2 || hidden.dim_size(1) != table().dim_size(1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("`hidden` must have the shape [tokens, ", table().dim_size(1),
                       "], as many columns as `table`. Received: shape ", hidden.shape().DebugString()));
    }
    if (hidden.dim_size(0) > INT32_MAX || table().dim_size(0) > INT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat("`hidden` and `table` must have less than 2^31 rows. Received: ", hidden.dim_size(0),
                       " and ", table().dim_size(0)));
    }
    if (bias() != nullptr && (bias()->dims() != 1 || bias()->dim_size(0) != table().dim_size(0))) {
      return absl::InvalidArgumentError(absl::StrCat("`bias` must have the shape [", table().dim_size(0),
                                                     "], one value per row of `table`. Received: shape ",
                                                     bias()->shape().DebugString()));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status OpenTensors(tensorflow::OpKernelContext* context, int at, tensorflow::DataType dtype,
                           bool use_bias) {
    if (context->input_dtype(at) != dtype ||
        (use_bias && context->input_dtype(at + 1) != tensorflow::DT_FLOAT)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`table` must be of type ", tensorflow::DataTypeString(dtype),
          ", `bias` of type float. Received: ", tensorflow::DataTypeString(context->input_dtype(at)), " and ",
          tensorflow::DataTypeString(context->input_dtype(at + 1))));
    }
    table_ = &context->input(at);
    bias_ = use_bias ? &context->input(at + 1) : nullptr;
    return absl::OkStatus();
  }

  const tensorflow::Tensor *table_ = nullptr, *bias_ = nullptr;
  tensorflow::core::RefCountPtr<tensorflow::Var> table_variable_, bias_variable_;
  tensorflow::Var *first_ = nullptr, *second_ = nullptr;
};

// What the kernels take of it; T is TensorFlow's type.
template <typename T>
TreeTable<typename KernelType<T>::type> TableOf(const LockedTable& variables) {
  return {Data<T>(variables.table()), variables.bias() != nullptr ? Data<float>(*variables.bias()) : nullptr,
          variables.table().dim_size(1)};
}

// Null for weights of shape [0]: all 1.
inline const float* WeightsOf(const tensorflow::Tensor& weights) {
  return weights.NumElements() > 0 ? Data<float>(weights) : nullptr;
}

inline absl::Status CheckVector(const tensorflow::Tensor& tensor, int64_t size, const char* name,
                                bool or_empty = false) {
  if (tensor.dims() == 1 && (tensor.dim_size(0) == size || (or_empty && tensor.dim_size(0) == 0))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must have the shape [", size, "]",
                                                 or_empty ? " or [0]" : "", ". Received: shape ",
                                                 tensor.shape().DebugString()));
}

// The tree at inputs at .. at + 4 (class_row, node_start, node_row, node_parent, row_hint) of a table with
// `rows` rows. A forest (several nodes without a parent) may use fewer rows: as many as row_hint covers, at
// most.
inline absl::Status OpenTree(tensorflow::OpKernelContext* context, int at, int64_t rows, bool forest,
                             TreeArrays* tree) {
  const tensorflow::Tensor &class_row = context->input(at), &node_row = context->input(at + 2);
  if (class_row.dims() != 1 || node_row.dims() != 1 || class_row.dim_size(0) < 1 ||
      node_row.dim_size(0) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("`class_row` and `node_row` must have rank 1 and not be empty. Received: shapes ",
                     class_row.shape().DebugString(), " and ", node_row.shape().DebugString()));
  }
  const int64_t classes = class_row.dim_size(0), nodes = node_row.dim_size(0);
  const tensorflow::Tensor& row_hint = context->input(at + 4);
  if (forest) {
    rows = std::min<int64_t>(rows, 16 * row_hint.NumElements());
  } else if (classes + nodes - 1 != rows) {
    return absl::InvalidArgumentError(absl::StrCat("`table` must have classes + nodes - 1 = ", classes, " + ",
                                                   nodes, " - 1 rows. Received: ", rows));
  }
  TF_RETURN_IF_ERROR(CheckVector(context->input(at + 1), nodes + 1, "node_start"));
  TF_RETURN_IF_ERROR(CheckVector(context->input(at + 3), nodes, "node_parent"));
  TF_RETURN_IF_ERROR(CheckVector(row_hint, (rows + 15) / 16, "row_hint"));
  *tree = {Data<int32_t>(class_row),
           Data<int32_t>(context->input(at + 1)),
           Data<int32_t>(node_row),
           Data<int32_t>(context->input(at + 3)),
           Data<int32_t>(row_hint),
           classes,
           nodes,
           rows};
  return absl::OkStatus();
}

// The saved tensors at inputs at .. at + 5: their ranks and sizes (CheckTreeSaved looks at the values).
inline absl::Status OpenSaved(tensorflow::OpKernelContext* context, int at, TreeSaved* saved) {
  const int64_t pairs = context->input(at).NumElements(), groups = context->input(at + 2).NumElements();
  TF_RETURN_IF_ERROR(CheckVector(context->input(at), pairs, "pair_token"));
  TF_RETURN_IF_ERROR(CheckVector(context->input(at + 1), pairs, "pair_row"));
  TF_RETURN_IF_ERROR(CheckVector(context->input(at + 2), groups, "group_node"));
  TF_RETURN_IF_ERROR(CheckVector(context->input(at + 3), groups + 1, "group_start"));
  TF_RETURN_IF_ERROR(CheckVector(context->input(at + 4), pairs, "pair_lse"));
  TF_RETURN_IF_ERROR(CheckVector(context->input(at + 5), context->input(at + 5).NumElements(), "probs"));
  const tensorflow::Tensor& probs = context->input(at + 5);
  *saved = {Data<int32_t>(context->input(at)),
            Data<int32_t>(context->input(at + 1)),
            Data<int32_t>(context->input(at + 2)),
            Data<int32_t>(context->input(at + 3)),
            Data<float>(context->input(at + 4)),
            probs.NumElements() > 0 ? Data<float>(probs) : nullptr,
            pairs,
            groups};
  return absl::OkStatus();
}

// What went wrong with the paths of the targets. target: the one at `position`.
inline absl::Status BadPairs(TreeStatus status, int64_t classes, int64_t target, int64_t position) {
  switch (status) {
    case TreeStatus::kOk:
      return absl::OkStatus();
    case TreeStatus::kBadTarget:
      return absl::InvalidArgumentError(absl::StrCat("`targets` must be in [0, ", classes,
                                                     "), the classes of the tree. ", "Received: ", target,
                                                     " at position ", position));
    case TreeStatus::kBadTree:
      return absl::InvalidArgumentError(absl::StrCat(
          "`class_row`, `node_start`, `node_row`, `node_parent` and `row_hint` must describe one tree. ",
          "Received: arrays in which the path of class ", target, " does not lead to the root"));
    default:
      return absl::InvalidArgumentError(
          "`targets` must have less than 2^31 (token, node) pairs. Received: more");
  }
}

inline absl::Status BadSaved() {
  return absl::InvalidArgumentError(
      "`pair_token`, `pair_row`, `group_node`, `group_start` and `probs` must be outputs "
      "of the loss op for the same tree. Received: values out of range");
}

// k, node_start and row_child at inputs 1, 4 and 5 of TreeTopK, for a table with `rows` rows.
inline absl::Status OpenTopK(tensorflow::OpKernelContext* context, int64_t rows, TreeArrays* tree,
                             int64_t* k) {
  TF_RETURN_IF_ERROR(CheckVector(context->input(5), rows, "row_child"));
  const tensorflow::Tensor &starts = context->input(4), &k_tensor = context->input(1);
  const int64_t nodes = starts.NumElements() - 1, classes = rows - nodes + 1;
  if (starts.dims() != 1 || nodes < 1 || classes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("`node_start` must have rank 1 and 2 to ", rows + 1,
                                                   " values. Received: shape ",
                                                   starts.shape().DebugString()));
  }
  if (k_tensor.dims() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`k` must be a scalar. Received: shape ", k_tensor.shape().DebugString()));
  }
  *k = k_tensor.scalar<int32_t>()();
  if (*k < 0 || *k > classes) {
    return absl::InvalidArgumentError(
        absl::StrCat("`k` must be in [0, ", classes, "], the number of classes. Received: k=", *k));
  }
  *tree = {nullptr, Data<int32_t>(starts), nullptr, nullptr, nullptr, classes, nodes, rows};
  return absl::OkStatus();
}

inline absl::Status BadTopKTree() {
  return absl::InvalidArgumentError(
      "`node_start` and `row_child` must describe one tree. Received: arrays that name rows, "
      "nodes or classes that do not exist");
}

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_OP_H_
