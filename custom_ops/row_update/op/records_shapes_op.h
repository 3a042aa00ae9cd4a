// What the shape functions and the kernels of records check.
#ifndef LARGEOUT_ROW_UPDATE_RECORDS_SHAPES_OP_H_
#define LARGEOUT_ROW_UPDATE_RECORDS_SHAPES_OP_H_

#include "common/op/tf_op.h"
#include "row_update/records.h"

namespace largeout {

// The attribute `dim`: small enough that the words of a record can be counted.
inline absl::Status CheckDim(int64_t dim) {
  if (dim <= INT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`dim` must be less than 2^31. Received: dim=", dim));
}

// For shape functions: the variable at input 0, and the attribute `dim`. How many words a record has is
// checked when the op runs: the variable may get another file then.
inline absl::Status RecordsShape(tensorflow::shape_inference::InferenceContext* c, int64_t* dim) {
  TF_RETURN_IF_ERROR(c->GetAttr("dim", dim));
  TF_RETURN_IF_ERROR(CheckDim(*dim));
  const tensorflow::shape_inference::ShapeHandle records = TableShape(c, 0);
  if (!c->RankKnown(records) || c->Rank(records) == 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`variable` must have the shape [rows, words]. Received: shape=", c->DebugString(records)));
}

// The variable: records of at least `words` words. `what` is what they hold: "a row of 3 bfloat16".
inline absl::Status CheckRecords(const tensorflow::Tensor& records, int64_t words, const std::string& what) {
  if (records.dims() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`variable` must have the shape [rows, words]. Received: shape=", records.shape().DebugString()));
  }
  if (records.dim_size(1) < words) {
    return absl::InvalidArgumentError(absl::StrCat("`variable` must have at least ", words,
                                                   " words in a record, for a mark and ", what,
                                                   ". Received: shape=", records.shape().DebugString()));
  }
  return absl::OkStatus();
}

inline absl::Status CheckIndices(const tensorflow::Tensor& indices) {
  if (indices.dims() == 1 && indices.NumElements() <= INT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`indices` must have the shape [n], n < 2^31. Received: shape=", indices.shape().DebugString()));
}

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_RECORDS_SHAPES_OP_H_
