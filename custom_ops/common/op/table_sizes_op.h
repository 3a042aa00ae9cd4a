// The input `shape` of an op that makes the memory of a table.
#ifndef LARGEOUT_COMMON_TABLE_SIZES_OP_H_
#define LARGEOUT_COMMON_TABLE_SIZES_OP_H_

#include "common/op/tf_op.h"

namespace largeout {

// The shape of a table whose sizes, [rank] of int64, are an input.
inline absl::Status ShapeOfSizes(const tensorflow::Tensor& sizes, tensorflow::DataType dtype,
                                 tensorflow::TensorShape* shape) {
  if (!tensorflow::TensorShapeUtils::IsVector(sizes.shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("`shape` must have rank 1. Received: shape of rank ", sizes.dims()));
  }
  TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(sizes.vec<int64_t>(), shape));
  // An allocator that adds to the bytes, or rounds them up, must not come out at a few.
  constexpr int64_t kMostBytes = int64_t{1} << 60;
  if (shape->num_elements() > kMostBytes / tensorflow::DataTypeSize(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("`shape` must be that of a table of at most 2^60 bytes. Received: ", shape->DebugString(),
                     " of type ", tensorflow::DataTypeString(dtype)));
  }
  return absl::OkStatus();
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_TABLE_SIZES_OP_H_
