// A table [rows, dim] and its bias [rows], each the handle of a variable or a tensor, beside hidden vectors
// [tokens, dim]: shapes and kernels of the output heads.
#ifndef LARGEOUT_COMMON_TABLE_OP_H_
#define LARGEOUT_COMMON_TABLE_OP_H_

#include "common/op/locked_variables_op.h"
#include "common/op/shapes_op.h"

namespace largeout {

// The shape of a table: that of the variable behind a handle, or of a tensor.
inline tensorflow::shape_inference::ShapeHandle OperandShape(tensorflow::shape_inference::InferenceContext* c,
                                                             int at) {
  tensorflow::DataType type;
  const bool is_tensor = c->GetAttr("Ttable", &type).ok() && type != tensorflow::DT_RESOURCE;
  return is_tensor ? c->input(at) : TableShape(c, at);
}

// hidden [T, d] and the table's [R, d].
inline absl::Status HiddenAndTable(tensorflow::shape_inference::InferenceContext* c, int hidden_at,
                                   int table_at, tensorflow::shape_inference::ShapeHandle* hidden,
                                   tensorflow::shape_inference::DimensionHandle* rows,
                                   tensorflow::shape_inference::DimensionHandle* dim) {
  tensorflow::shape_inference::ShapeHandle table;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(hidden_at), 2, hidden));
  TF_RETURN_IF_ERROR(c->WithRank(OperandShape(c, table_at), 2, &table));
  absl::Status same = c->Merge(c->Dim(*hidden, 1), c->Dim(table, 1), dim);
  if (!same.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`hidden` must have as many columns as `table`. Received: shapes ",
                     c->DebugString(*hidden), " and ", c->DebugString(table)));
  }
  *rows = c->Dim(table, 0);
  bool use_bias;
  TF_RETURN_IF_ERROR(c->GetAttr("use_bias", &use_bias));
  if (use_bias) {
    tensorflow::shape_inference::ShapeHandle bias;
    TF_RETURN_IF_ERROR(c->WithRank(OperandShape(c, table_at + 1), 1, &bias));
    TF_RETURN_IF_ERROR(c->Merge(*rows, c->Dim(bias, 0), rows));
  }
  return absl::OkStatus();
}

// hidden [T, d] against table [R, d], bias [R] (null: there is none).
inline absl::Status CheckHidden(const tensorflow::Tensor& hidden, const tensorflow::Tensor& table,
                                const tensorflow::Tensor* bias) {
  if (table.dims() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`table` must have the shape [rows, dim]. Received: shape ", table.shape().DebugString()));
  }
  if (hidden.dims() != 2 || hidden.dim_size(1) != table.dim_size(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("`hidden` must have the shape [tokens, ", table.dim_size(1),
                     "], as many columns as `table`. Received: shape ", hidden.shape().DebugString()));
  }
  if (hidden.dim_size(0) > INT32_MAX || table.dim_size(0) > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("`hidden` and `table` must have less than 2^31 rows. Received: ", hidden.dim_size(0),
                     " and ", table.dim_size(0)));
  }
  if (bias != nullptr && (bias->dims() != 1 || bias->dim_size(0) != table.dim_size(0))) {
    return absl::InvalidArgumentError(absl::StrCat("`bias` must have the shape [", table.dim_size(0),
                                                   "], one value per row of `table`. Received: shape ",
                                                   bias->shape().DebugString()));
  }
  return absl::OkStatus();
}

// The table and bias at two consecutive inputs: both variables, which are locked against updates while this
// object lives, or both tensors.
class TableAndBias {
 public:
  absl::Status Open(tensorflow::OpKernelContext* context, int at, tensorflow::DataType dtype, bool use_bias) {
    const bool handle = context->input_dtype(at) == tensorflow::DT_RESOURCE;
    if (use_bias && handle != (context->input_dtype(at + 1) == tensorflow::DT_RESOURCE)) {
      return absl::InvalidArgumentError(
          absl::StrCat("`table` and `bias` must both be handles of variables, or both tensors. Received: ",
                       tensorflow::DataTypeString(context->input_dtype(at)), " and ",
                       tensorflow::DataTypeString(context->input_dtype(at + 1))));
    }
    TF_RETURN_IF_ERROR(variables_.Find(context, at, dtype, "table"));
    if (use_bias) TF_RETURN_IF_ERROR(variables_.Find(context, at + 1, tensorflow::DT_FLOAT, "bias"));
    variables_.Lock();
    return absl::OkStatus();
  }

  const tensorflow::Tensor& table() const { return variables_[0]; }
  const tensorflow::Tensor* bias() const { return variables_.size() > 1 ? &variables_[1] : nullptr; }

  absl::Status Check(const tensorflow::Tensor& hidden) const { return CheckHidden(hidden, table(), bias()); }

 private:
  LockedVariables variables_;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_TABLE_OP_H_
