#include "common/op/guarded_op.h"
#include "common/op/mapped_tensor_op.h"

namespace largeout {

using tensorflow::DEVICE_CPU;

REGISTER_OP("Largeout>MappedTable")
    .Input("path: string")
    .Input("shape: int64")
    .Output("table: dtype")
    .Attr("dtype: {float, bfloat16, uint8}")
    .Attr("read_only: bool = false")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      tensorflow::shape_inference::ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &shape));
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &shape));
      c->set_output(0, shape);
      return absl::OkStatus();
    })
    .Doc(R"(A file as the memory of a large table. A new one is sparse, and reads as zeros.

path: scalar: the file. It is made where it is not there.
shape: [rank]: the shape of the table; an existing file must have just its bytes.
table: what is written there is in the file. The file stays mapped as long as this memory is used.
read_only: the file must be there, and nothing may be written to `table`: the process would end.
)");

class MappedTableOp : public GuardedOp {
 public:
  explicit MappedTableOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("read_only", &read_only_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    tensorflow::Tensor table;
    OP_REQUIRES_OK(context,
                   MappedTensor(context->input(0), context->input(1), output_type(0), read_only_, &table));
    context->set_output(0, table);
  }

 private:
  bool read_only_ = false;
};

REGISTER_KERNEL_BUILDER(Name("Largeout>MappedTable").Device(DEVICE_CPU), MappedTableOp);

}  // namespace largeout
