// Helpers of the shape functions of lookups.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_SHAPES_OP_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_SHAPES_OP_H_

#include <string>

#include "common/op/shapes_op.h"
#include "common/op/tf_op.h"

#define LARGEOUT_EMBEDDING_ATTRIBUTES                      \
  Attr("dtype: {float, bfloat16}")                         \
      .Attr("Tids: {int32, int64}")                        \
      .Attr("combiner: {'none', 'sum', 'mean', 'sqrtn'} = 'none'") \
      .Attr("out_of_range: {'error', 'zero'} = 'error'") \
      .LARGEOUT_LATE_ATTRIBUTE

namespace largeout {

// The output's dimensions before `dim`, from ids, row_splits and weights at inputs first, first + 1, first + 2.
inline absl::Status LeadingShape(tensorflow::shape_inference::InferenceContext* c, int first,
                                 tensorflow::shape_inference::ShapeHandle* leading) {
  using tensorflow::shape_inference::DimensionHandle;
  using tensorflow::shape_inference::ShapeHandle;
  const ShapeHandle ids = c->input(first);
  ShapeHandle splits, weights;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 1, &splits));
  std::string combiner;
  TF_RETURN_IF_ERROR(c->GetAttr("combiner", &combiner));
  const DimensionHandle count = c->Dim(splits, 0);
  const bool known = c->ValueKnown(count);

  weights = c->input(first + 2);
  const bool maybe_none = !c->RankKnown(weights) ||
                          (c->Rank(weights) == 1 && (!c->ValueKnown(c->Dim(weights, 0)) || c->Value(c->Dim(weights, 0)) == 0));
  if (!maybe_none) TF_RETURN_IF_ERROR(c->Merge(ids, weights, &weights));

  if (combiner == "none") {
    if (known && c->Value(count) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("`row_splits` must be empty ([0]) without combiner. Received: shape ", c->DebugString(splits)));
    }
    *leading = ids;
  } else if (known && c->Value(count) > 0) {
    ShapeHandle vector;
    TF_RETURN_IF_ERROR(c->WithRank(ids, 1, &vector));
    *leading = c->Vector(c->Value(count) - 1);
  } else if (known || (c->RankKnown(ids) && c->Rank(ids) != 1)) {  // a ragged lookup has a vector of ids
    ShapeHandle at_least_vector;
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(ids, 1, &at_least_vector));
    TF_RETURN_IF_ERROR(c->Subshape(at_least_vector, 0, -1, leading));
  } else {
    *leading = c->UnknownShape();
  }
  return absl::OkStatus();
}

// grad = leading + [dim]
inline absl::Status CheckGrad(tensorflow::shape_inference::InferenceContext* c,
                              tensorflow::shape_inference::ShapeHandle grad,
                              tensorflow::shape_inference::ShapeHandle leading,
                              tensorflow::shape_inference::DimensionHandle* dim) {
  tensorflow::shape_inference::ShapeHandle expected, merged;
  TF_RETURN_IF_ERROR(c->Concatenate(leading, c->Vector(*dim), &expected));
  TF_RETURN_IF_ERROR(c->Merge(grad, expected, &merged));
  if (c->RankKnown(merged)) *dim = c->Dim(merged, -1);
  return absl::OkStatus();
}

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_SHAPES_OP_H_
