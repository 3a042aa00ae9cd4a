// PartitionIds as TensorFlow sees it: name, shapes, documentation. Kernels: exchange_cpu_op.cc,
// exchange_gpu_op.cc.
#include "exchange/op/exchange_shapes_op.h"

namespace largeout {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("Largeout>PartitionIds")
    .Input("ids: Tids")
    .Input("offsets: int64")
    .Input("position_of: int64")
    .Input("hot: int64")
    .Output("unique: int64")
    .Output("local: int64")
    .Output("inverse: int32")
    .Output("cuts: int64")
    .Attr("Tids: {int32, int64}")
    .Attr("kind: {'identity', 'modulo', 'permutation', 'explicit'}")
    .Attr("rows: int >= 1")
    .Attr("devices: int >= 1")
    .Attr("multiplier: int = 1")
    .Attr("addend: int = 0")
    .Attr("out_of_range: {'error', 'zero'} = 'error'")
    .SetShapeFn([](InferenceContext* c) {
      int64_t rows, devices;
      std::string kind;
      TF_RETURN_IF_ERROR(c->GetAttr("rows", &rows));
      TF_RETURN_IF_ERROR(c->GetAttr("devices", &devices));
      TF_RETURN_IF_ERROR(c->GetAttr("kind", &kind));
      TF_RETURN_IF_ERROR(CheckDevices(devices));
      ShapeHandle merged;
      TF_RETURN_IF_ERROR(c->Merge(c->input(1), c->Vector(devices + 1), &merged));
      TF_RETURN_IF_ERROR(c->Merge(c->input(2), c->Vector(kind == "explicit" ? rows : 0), &merged));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 1, &merged));
      const ShapeHandle unique = c->Vector(c->UnknownDim());
      c->set_output(0, unique);
      c->set_output(1, unique);
      c->set_output(2, c->input(0));
      c->set_output(3, c->Vector(devices + 2));
      return absl::OkStatus();
    })
    .Doc(R"(The rows that a batch of ids asks of each shard of a table, each once.

ids: Rows of the table, of any shape.
offsets: [devices + 1]: shard s has positions offsets[s] .. offsets[s + 1], all devices have those below offsets[0].
  (On a GPU it is read from host memory.)
position_of: [rows] where kind is "explicit", otherwise [0].
hot: The rows at positions 0, 1, ..., ascending. [0] where kind is "explicit".
unique: [u] ascending: the positions of the ids.
local: [u]: their index within their shard; of those below offsets[0] the position itself.
inverse: The index into unique of every id; -1 where it was dropped.
cuts: [devices + 2], in host memory: unique[0 : cuts[1]] are hot, unique[cuts[s + 1] : cuts[s + 2]] belong to
  shard s.
kind: The position of a row that is not hot: "identity": h + row (h: the length of hot), "modulo":
  offsets[row % devices] + row / devices, "permutation": h + (row * multiplier + addend) % rows, "explicit":
  position_of[row].
out_of_range: "error": an id outside [0, rows) is an error. "zero": it is dropped.
)");

}  // namespace largeout
