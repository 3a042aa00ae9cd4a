// Checks that the shape functions and the kernels of several families share.
#ifndef LARGEOUT_COMMON_SHAPES_OP_H_
#define LARGEOUT_COMMON_SHAPES_OP_H_

// Of ops whose calls on a GPU need not wait to learn whether what they got is bad.
#define LARGEOUT_LATE_ATTRIBUTE Attr("late_errors: bool = false")

#include "common/op/tf_op.h"

namespace largeout {

// Input `at` is a vector of `size`; with or_empty, or of nothing. `name` is what the error calls it.
inline absl::Status VectorShape(tensorflow::shape_inference::InferenceContext* c, int at,
                                tensorflow::shape_inference::DimensionHandle size, const char* name,
                                bool or_empty = false) {
  tensorflow::shape_inference::ShapeHandle vector;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(at), 1, &vector));
  const auto found = c->Dim(vector, 0);
  if (!c->ValueKnown(size) || !c->ValueKnown(found) || c->Value(size) == c->Value(found))
    return absl::OkStatus();
  if (or_empty && c->Value(found) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must have the shape [", c->Value(size), "]",
                                                 or_empty ? " or [0]" : "", ". Received: [", c->Value(found),
                                                 "]"));
}

// The same in a kernel, for any shape.
inline absl::Status CheckShape(const tensorflow::Tensor& tensor, const char* name,
                               const tensorflow::TensorShape& shape, bool or_empty = false) {
  if (tensor.shape() == shape || (or_empty && tensor.shape() == tensorflow::TensorShape({0})))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must have the shape ", shape.DebugString(),
                                                 or_empty ? " or [0]" : "", ". Received: shape ",
                                                 tensor.shape().DebugString()));
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_SHAPES_OP_H_
