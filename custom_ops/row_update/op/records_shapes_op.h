// Checks that the shape functions and the kernels of records share.
#ifndef LARGEOUT_ROW_UPDATE_RECORDS_SHAPES_OP_H_
#define LARGEOUT_ROW_UPDATE_RECORDS_SHAPES_OP_H_

#include <cstring>
#include <string>

#include "common/op/mapped_tensor_op.h"
#include "common/op/tf_op.h"
#include "row_update/records.h"

namespace largeout {

// The attribute `dim`: small enough that the words of a record can be counted.
inline absl::Status CheckDim(int64_t dim) {
  if (dim <= INT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`dim` must be less than 2^31. Received: dim=", dim));
}

// For shape functions: the variable at input 0. How many words a record has is
// checked when the op runs: the variable may get another file then.
inline absl::Status RecordsShape(tensorflow::shape_inference::InferenceContext* c) {
  const tensorflow::shape_inference::ShapeHandle records = TableShape(c, 0);
  if (!c->RankKnown(records) || c->Rank(records) == 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`variable` must have the shape [rows, words]. Received: shape=", c->DebugString(records)));
}

// The same, and the attribute `dim`.
inline absl::Status RecordsShape(tensorflow::shape_inference::InferenceContext* c, int64_t* dim) {
  TF_RETURN_IF_ERROR(c->GetAttr("dim", dim));
  TF_RETURN_IF_ERROR(CheckDim(*dim));
  return RecordsShape(c);
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

inline absl::Status CheckIndex(const BadIndex& bad, int64_t rows, const char* undone) {
  if (bad.position < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`indices` must be in [0, ", rows,
                                                 "), the rows of `variable`. Received: indices[",
                                                 bad.position, "] = ", bad.index, undone));
}

// damaged: as of GatherRecords.
template <typename Id>
absl::Status CheckWhole(const tensorflow::Tensor& records, const Id* ids, int64_t damaged) {
  if (damaged < 0) return absl::OkStatus();
  const int64_t row = ids[damaged], words = records.dim_size(1);
  const float* record = Data<float>(records) + row * words;
  uint32_t mark;
  std::memcpy(&mark, record, sizeof(mark));
  const std::string file = FileOf(records);
  return absl::DataLossError(absl::StrCat(
      file.empty() ? "`variable`" : file, " is damaged: row ", row, " must have the digest with which it was ",
      "written, ", absl::Hex(mark, absl::kZeroPad8), ". Bring the folder back from a copy, or remove it and ",
      "load the last save of the model. Received: a row with the digest ",
      absl::Hex(RecordMark(record, words, row), absl::kZeroPad8)));
}

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_RECORDS_SHAPES_OP_H_
