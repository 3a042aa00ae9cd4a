// VocabularyFind and VocabularyUpdate as TensorFlow sees them: names, shapes, documentation. Kernels:
// vocabulary_cpu_op.cc.
#include "common/op/shapes_op.h"
#include "vocabulary/op/vocabulary_shapes_op.h"

namespace largeout {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

// The shape of a variable, of rank `rank` where that is known. `words`: what it must have.
absl::Status VariableShape(InferenceContext* c, int at, int rank, const char* name, const char* words,
                           ShapeHandle* shape) {
  *shape = TableShape(c, at);
  if (!c->RankKnown(*shape)) *shape = c->UnknownShapeOfRank(rank);
  if (c->Rank(*shape) == rank) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`", name, "` must have the shape ", words, ". Received: shape ", c->DebugString(*shape)));
}

absl::Status KeysShape(InferenceContext* c, DimensionHandle* capacity) {
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(VariableShape(c, 0, 1, "keys", "[capacity]", &keys));
  *capacity = c->Dim(keys, 0);
  return c->ValueKnown(*capacity) ? CheckCapacity(c->Value(*capacity)) : absl::OkStatus();
}

absl::Status IdsShape(InferenceContext* c, int at, ShapeHandle* ids) {
  if (c->RankKnown(c->input(at)) && c->Rank(c->input(at)) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("`ids` must have the shape [n]. Received: shape ", c->DebugString(c->input(at))));
  }
  return c->WithRank(c->input(at), 1, ids);
}

absl::Status VectorVariable(InferenceContext* c, int at, DimensionHandle size, const char* name) {
  ShapeHandle vector;
  TF_RETURN_IF_ERROR(VariableShape(c, at, 1, name, "[n]", &vector));
  const DimensionHandle found = c->Dim(vector, 0);
  if (!c->ValueKnown(size) || !c->ValueKnown(found) || c->Value(size) == c->Value(found))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must have the shape [", c->Value(size),
                                                 "]. Received: shape [", c->Value(found), "]"));
}

absl::Status FindShape(InferenceContext* c) {
  DimensionHandle capacity;
  ShapeHandle ids;
  TF_RETURN_IF_ERROR(KeysShape(c, &capacity));
  TF_RETURN_IF_ERROR(IdsShape(c, 1, &ids));
  c->set_output(0, ids);
  return absl::OkStatus();
}

absl::Status UpdateShape(InferenceContext* c) {
  int64_t admit_after;
  TF_RETURN_IF_ERROR(c->GetAttr("admit_after", &admit_after));
  TF_RETURN_IF_ERROR(CheckAdmitAfter(admit_after));
  DimensionHandle capacity;
  ShapeHandle ids, sketch;
  TF_RETURN_IF_ERROR(KeysShape(c, &capacity));
  TF_RETURN_IF_ERROR(VectorVariable(c, 1, capacity, "scores"));
  TF_RETURN_IF_ERROR(VariableShape(c, 2, 2, "sketch", "[blocks, 64]", &sketch));
  const DimensionHandle blocks = c->Dim(sketch, 0), counters = c->Dim(sketch, 1);
  if (c->ValueKnown(counters) && c->Value(counters) != kCountersPerBlock) {
    return absl::InvalidArgumentError(
        absl::StrCat("`sketch` must have the shape [blocks, 64]. Received: shape ", c->DebugString(sketch)));
  }
  if (c->ValueKnown(blocks)) TF_RETURN_IF_ERROR(CheckBlocks(c->Value(blocks), admit_after));
  TF_RETURN_IF_ERROR(VectorVariable(c, 3, c->MakeDim(2), "clock"));
  TF_RETURN_IF_ERROR(IdsShape(c, 4, &ids));
  c->set_output(0, ids);
  c->set_output(1, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Largeout>VocabularyFind")
    .Input("keys: resource")
    .Input("ids: int64")
    .Output("rows: int64")
    .SetIsStateful()  // it reads a variable: two with an update between them must not be merged
    .SetShapeFn(FindShape)
    .Doc(R"(The row of each id in a vocabulary; see vocabulary.h.

keys: [capacity], int64: the id in each slot; -2^63 where it is free.
ids: [n]
rows: [n]: the slot that holds the id, -1 where there is none.
)");

REGISTER_OP("Largeout>VocabularyUpdate")
    .Input("keys: resource")
    .Input("scores: resource")
    .Input("sketch: resource")
    .Input("clock: resource")
    .Input("ids: int64")
    .Output("rows: int64")
    .Output("replaced: int64")
    .Attr("admit_after: int")
    .Attr("evict: {'lfu', 'lru'}")
    .SetIsStateful()
    .SetShapeFn(UpdateShape)
    .Doc(R"(One step of a vocabulary, in place: ids get rows, and lose them to others; see vocabulary.h.

keys: [capacity], int64: the id in each slot; -2^63 where it is free. capacity is a multiple of 16.
scores: [capacity], int64: the lowest one goes first.
sketch: [blocks, 64], uint8: counters of the ids that have no slot. There may be no blocks if admit_after is 1.
clock: [2], int64: steps taken, additions to the sketch since it was last halved.
ids: [n]
rows: [n]: the slot that holds the id after this step, -1 where there is none.
replaced: [m]: the slots that held another id before, each once.
admit_after: An id gets a slot when it has been seen so often. In [1, 255].
evict: Who loses its slot where there is none left: "lfu": the id that was seen the fewest times (of equals, the one
  that was seen longest ago), "lru": the one that was seen longest ago.
)");

}  // namespace largeout
