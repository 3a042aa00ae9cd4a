// Checks of the embedding ops' kernels on any device: attributes, shapes, and the words of their errors.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_OP_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_OP_H_

#include <limits>
#include <string>

#include "common/op/tf_op.h"
#include "embedding/embedding.h"

namespace largeout {

// Inputs of every embedding op after its first one come in this order.
struct BagInputs {
  const tensorflow::Tensor& ids;
  const tensorflow::Tensor& row_splits;
  const tensorflow::Tensor& weights;
};

class EmbeddingAttributes {
 public:
  explicit EmbeddingAttributes(tensorflow::OpKernelConstruction* context) {
    std::string combiner, out_of_range;
    OP_REQUIRES_OK(context, context->GetAttr("combiner", &combiner));
    OP_REQUIRES_OK(context, context->GetAttr("out_of_range", &out_of_range));
    combines_ = combiner != "none";
    combiner_ = combiner == "mean" ? Combiner::kMean : (combiner == "sqrtn" ? Combiner::kSqrtn : Combiner::kSum);
    error_ = out_of_range == "error";
    if (context->HasAttr("late_errors")) OP_REQUIRES_OK(context, context->GetAttr("late_errors", &late_));
  }
  Combiner combiner() const { return combiner_; }
  // Whether ids out of range are an error; otherwise they are dropped.
  bool error() const { return error_; }
  // Whether errors of values on a GPU may come late.
  bool late() const { return late_; }

  // Shapes of the inputs -> bags and the shape of their leading dimensions (the output without `dim`). The values of
  // row_splits are the caller's to check: they may be on a device.
  template <typename Id>
  absl::Status ToBags(const BagInputs& in, Bags<Id>* bags, tensorflow::TensorShape* leading) const {
    const auto invalid = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
    const tensorflow::TensorShape &ids = in.ids.shape(), &splits = in.row_splits.shape(), &weights = in.weights.shape();
    if (ids.num_elements() > std::numeric_limits<int32_t>::max()) {
      return invalid("`ids` must have less than 2^31 elements. Received: shape ", ids.DebugString());
    }
    if (splits.dims() != 1) {
      return invalid("`row_splits` must be a vector, empty where ids are dense. Received: shape ", splits.DebugString());
    }
    const bool weighted = weights == ids;
    if (!weighted && !(weights.dims() == 1 && weights.dim_size(0) == 0)) {
      return invalid("`weights` must be empty ([0]) or have the shape of `ids`, ", ids.DebugString(),
                     ". Received: shape ", weights.DebugString());
    }
    *bags = {Data<Id>(in.ids), ids.num_elements(), nullptr, 1,
             ids.num_elements(), weighted ? in.weights.flat<float>().data() : nullptr};
    *leading = ids;
    if (splits.dim_size(0) > 0) {
      if (!combines_ || ids.dims() != 1) {
        return invalid("`row_splits` must be empty ([0]) unless `combiner` is set and `ids` is a vector. Received: row_splits of shape ",
                       splits.DebugString(), " and ids of shape ", ids.DebugString(),
                       combines_ ? "" : " without combiner");
      }
      bags->row_splits = Data<int64_t>(in.row_splits);
      bags->bag_size = 0;
      bags->num_bags = splits.dim_size(0) - 1;
      if (bags->num_bags > std::numeric_limits<int32_t>::max()) {
        return invalid("`row_splits` must be of less than 2^31 bags. Received: shape ", splits.DebugString());
      }
      *leading = tensorflow::TensorShape({bags->num_bags});
    } else if (combines_) {
      if (ids.dims() < 1) return invalid("`ids` must have rank 1 or more where `combiner` is set. Received: a scalar");
      bags->bag_size = ids.dim_size(ids.dims() - 1);
      leading->RemoveLastDims(1);
      bags->num_bags = leading->num_elements();
    }
    return absl::OkStatus();
  }

 private:
  bool combines_ = false, error_ = true, late_ = false;
  Combiner combiner_ = Combiner::kSum;
};

// leading + [dim], the shape of a lookup's output.
inline absl::Status LookupShape(const tensorflow::TensorShape& leading, int64_t dim,
                                tensorflow::TensorShape* shape) {
  *shape = leading;
  if (shape->AddDimWithStatus(dim).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`ids` and `table` must make an output of at most ", tensorflow::TensorShape::MaxDimensions(),
      " axes and less than 2^63 elements. Received: ", leading.DebugString(), " rows of ", dim, " columns"));
}

// The error of the id at flat position `position`.
inline absl::Status BadId(const tensorflow::TensorShape& shape, int64_t position, int64_t id, int64_t rows) {
  std::string index;
  for (int d = shape.dims() - 1; d >= 0; --d) {
    index = absl::StrCat(position % shape.dim_size(d), index.empty() ? "" : ", ", index);
    position /= shape.dim_size(d);
  }
  return absl::InvalidArgumentError(absl::StrCat("`ids` must lie in [0, ", rows, "), the rows of the table",
                                                 ". Received: ids[", index, "] = ", id));
}

inline absl::Status BadSplit(int64_t position, int64_t split, int64_t num_ids) {
  return absl::InvalidArgumentError(
      absl::StrCat("`row_splits` must begin with 0, never decrease and end with the number of ids, ", num_ids,
                   ". Received: row_splits[", position, "] = ", split));
}

// The error of an earlier batch, which nobody waited for.
inline absl::Status LateBags(const BadBags& bad) {
  const bool id = bad.id >= 0;
  return absl::InvalidArgumentError(absl::StrCat(
      id ? "`ids` must lie in [0, " : "`row_splits` must begin with 0, never decrease and end with the number of ids, ",
      bad.limit, id ? "), the rows of the table" : "", ". Received: ", bad.value, " at position ",
      id ? bad.id : bad.split, id ? " of the flat ids" : "",
      " of an earlier batch (a GPU's check is not waited for: `late_errors`)"));
}

inline absl::Status NumRows(const tensorflow::Tensor& num_rows, int64_t* rows) {
  if (!tensorflow::TensorShapeUtils::IsScalar(num_rows.shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("`num_rows` must be a scalar. Received: shape ", num_rows.shape().DebugString()));
  }
  *rows = num_rows.scalar<tensorflow::int64>()();
  if (*rows >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`num_rows` must not be negative. Received: ", *rows));
}

// grad must be [leading..., dim]; dim < 0: any.
inline absl::Status CheckGradShape(const tensorflow::TensorShape& grad, const tensorflow::TensorShape& leading, int64_t dim) {
  bool fits = grad.dims() == leading.dims() + 1 && (dim < 0 || grad.dim_size(leading.dims()) == dim);
  for (int d = 0; fits && d < leading.dims(); ++d) fits = grad.dim_size(d) == leading.dim_size(d);
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`grad` must have the shape of the lookup's output, ", leading.DebugString(),
                                                 " + [", dim < 0 ? "dim" : absl::StrCat(dim),
                                                 "]. Received: shape ", grad.DebugString()));
}

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_OP_H_
