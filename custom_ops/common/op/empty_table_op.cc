#include "common/huge_pages.h"
#include "common/op/guarded_op.h"
#include "common/op/table_sizes_op.h"

namespace largeout {

using tensorflow::DEVICE_CPU;
using tensorflow::DEVICE_GPU;

REGISTER_OP("Largeout>EmptyTable")
    .Input("shape: int64")
    .Output("table: dtype")
    .Attr("dtype: {float, bfloat16, int32, uint16, uint32}")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      tensorflow::shape_inference::ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(0, &shape));
      c->set_output(0, shape);
      return absl::OkStatus();
    })
    .Doc(R"(Memory for a large table: not initialized, on large pages where the system has them.

shape: [rank]: the shape of the table.
table: its values are whatever the memory held.
)");

class EmptyTableOp : public GuardedOp {
 public:
  using GuardedOp::GuardedOp;
  void Run(tensorflow::OpKernelContext* context) override {
    tensorflow::TensorShape shape;
    OP_REQUIRES_OK(context, ShapeOfSizes(context->input(0), output_type(0), &shape));
    tensorflow::Tensor* table;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &table));
    if (context->device()->tensorflow_cpu_worker_threads() != nullptr && !context->op_device_context()) {
      AdviseHugePages(table->data(), table->TotalBytes());
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("Largeout>EmptyTable").Device(DEVICE_CPU), EmptyTableOp);
REGISTER_KERNEL_BUILDER(Name("Largeout>EmptyTable").Device(DEVICE_GPU).HostMemory("shape"), EmptyTableOp);

}  // namespace largeout
