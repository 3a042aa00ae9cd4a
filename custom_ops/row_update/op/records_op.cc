// RecordUpdate, WriteRecords and GatherRecords as TensorFlow sees them: names, shapes, documentation. Kernels:
// records_kernel_op.h.
#include <string>

#include "common/op/tf_op.h"
#include "row_update/op/records_shapes_op.h"
#include "row_update/op/row_rule_op.h"

namespace largeout {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

absl::Status UpdateShape(InferenceContext* c) {
  std::string name;
  int64_t dim;
  TF_RETURN_IF_ERROR(RecordsShape(c, &dim));
  TF_RETURN_IF_ERROR(c->GetAttr("rule", &name));
  UpdateRule rule;
  FindUpdateRule(name.c_str(), &rule);
  ShapeHandle indices, values, hyper;
  DimensionHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &indices));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 1, &hyper));
  TF_RETURN_IF_ERROR(RoundingShape(c, 4));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(indices, 0), c->Dim(values, 0), &unused));
  TF_RETURN_IF_ERROR(c->WithValue(c->Dim(values, 1), dim, &unused));
  return c->WithValue(c->Dim(hyper, 0), kUpdateRuleInfo[static_cast<int>(rule)].hyper, &unused);
}

absl::Status WriteShape(InferenceContext* c) {
  ShapeHandle indices, contents;
  DimensionHandle unused;
  TF_RETURN_IF_ERROR(RecordsShape(c));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &indices));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &contents));
  return c->Merge(c->Dim(indices, 0), c->Dim(contents, 0), &unused);
}

absl::Status GatherShape(InferenceContext* c) {
  int64_t dim;
  TF_RETURN_IF_ERROR(RecordsShape(c, &dim));
  ShapeHandle indices;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &indices));
  c->set_output(0, c->Matrix(c->Dim(indices, 0), c->MakeDim(dim)));
  c->set_output(1, indices);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Largeout>RecordUpdate")
    .Input("variable: resource")
    .Input("indices: Tindices")
    .Input("values: Tvalues")
    .Input("hyper: float")
    .Input("rounding: int64")
    .Attr("rule: {'sgd', 'momentum', 'nesterov', 'adagrad', 'row_wise_adagrad', 'lazy_adam', 'ftrl'}")
    .Attr("dtype: {float, bfloat16}")
    .Attr("Tvalues: {float, bfloat16}")
    .Attr("Tindices: {int32, int64}")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn(UpdateShape)
    .Doc(R"(What RowUpdate does, on rows and slots inside records, in place. See records.h.

variable: float32 [rows, words]: records of rows of `dim` values of type dtype.
indices: [n], the rows; duplicates are summed first.
values: [n, dim], their gradients.
hyper, rounding: As in RowUpdate.
)");

REGISTER_OP("Largeout>WriteRecords")
    .Input("variable: resource")
    .Input("indices: Tindices")
    .Input("contents: float")
    .Attr("Tindices: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(WriteShape)
    .Doc(R"(Whole records: what is behind the mark of each, and the mark. See records.h.

variable: float32 [rows, words].
indices: [n], the rows. Of one that is named several times the last record stays.
contents: [n, words - 1].
)");

REGISTER_OP("Largeout>GatherRecords")
    .Input("variable: resource")
    .Input("indices: Tindices")
    .Output("rows: dtype")
    .Output("written: bool")
    .Attr("dtype: {float, bfloat16}")
    .Attr("Tindices: {int32, int64}")
    .Attr("dim: int >= 0")
    .SetIsStateful()
    .SetShapeFn(GatherShape)
    .Doc(R"(The rows of records, and whether they were ever written. See records.h.

An error, where a record is not the one that was written. With dim = 0 marks alone are read.

variable: float32 [rows, words]: records of rows of `dim` values of type dtype.
indices: [n], the rows, in any order.
rows: [n, dim]; what is there, where the row was never written: zeros in a new file.
written: [n], the marks.
)");

}  // namespace largeout
