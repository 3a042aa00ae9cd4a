// XxHash64 and CategoryHash as TensorFlow sees them: names, shapes, documentation. Kernels:
// hashing_cpu_op.cc.
#include <vector>

#include "hashing/op/hashing_shapes_op.h"

namespace largeout {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

// All inputs are vectors of one length.
absl::Status ValuesShape(InferenceContext* c, ShapeHandle* values) {
  *values = c->UnknownShapeOfRank(1);
  for (int i = 0; i < c->num_inputs(); ++i) {
    const ShapeHandle one = c->input(i);
    if ((c->RankKnown(one) && c->Rank(one) != 1) || !c->Merge(one, *values, values).ok()) {
      return absl::InvalidArgumentError(absl::StrCat("`values` must have the shape [n]",
                                                     c->num_inputs() > 1 ? ", the same n all of them" : "",
                                                     ". Received: shape ", c->DebugString(one)));
    }
  }
  return absl::OkStatus();
}

absl::Status HashShape(InferenceContext* c) {
  ShapeHandle values;
  TF_RETURN_IF_ERROR(ValuesShape(c, &values));
  c->set_output(0, values);
  return absl::OkStatus();
}

absl::Status CategoriesShape(InferenceContext* c) {
  std::vector<int64_t> seeds;
  int64_t num_bins, first;
  TF_RETURN_IF_ERROR(c->GetAttr("seeds", &seeds));
  TF_RETURN_IF_ERROR(c->GetAttr("num_bins", &num_bins));
  TF_RETURN_IF_ERROR(c->GetAttr("first", &first));
  const int64_t k = static_cast<int64_t>(seeds.size());
  TF_RETURN_IF_ERROR(CheckBins(num_bins, first, k));
  ShapeHandle values;
  TF_RETURN_IF_ERROR(ValuesShape(c, &values));
  c->set_output(0, c->Matrix(c->Dim(values, 0), k));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Largeout>XxHash64")
    .Input("values: T")
    .Output("hashes: uint64")
    .Attr("T: {string, int32, int64, uint64}")
    .Attr("seed: int")
    .SetShapeFn(HashShape)
    .Doc(R"(XXH64 of each value; see hashing.h.

values: [n]: strings by their bytes, integers by their decimal digits.
hashes: [n]
seed: The bits of the seed, an unsigned number.
)");

REGISTER_OP("Largeout>CategoryHash")
    .Input("values: T")
    .Output("ids: int64")
    .Attr("T: list({string, int32, int64, uint64}) >= 1")
    .Attr("seeds: list(int) >= 1")
    .Attr("num_bins: int")
    .Attr("first: int")
    .SetShapeFn(CategoriesShape)
    .Doc(R"(Ids of categories, or of crosses of several features, by XXH64; see hashing.h.

values: p features of shape [n]: strings by their bytes, integers by their decimal digits.
ids: [n, k]: those of hash j are j * num_bins + first + hash mod (num_bins - first).
seeds: k numbers: the bits of the seeds, unsigned.
num_bins: The bins of each hash, at least 2.
first: 0, or 1: bin 0 is not used.
)");

}  // namespace largeout
