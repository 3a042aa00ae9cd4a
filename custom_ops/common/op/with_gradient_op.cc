#include "common/op/guarded_op.h"

namespace largeout {

using tensorflow::DEVICE_CPU;
using tensorflow::DEVICE_GPU;

REGISTER_OP("Largeout>WithGradient")
    .Input("value: T")
    .Input("inputs: S")
    .Input("handles: num_handles * resource")
    .Output("same: T")
    .Attr("T: type")
    .Attr("S: list(type) >= 0")
    .Attr("num_handles: int >= 0")
    .Attr("key: string")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    })
    .Doc(R"(`value` as it is, of which `key` names the gradient.

value: of any shape.
inputs: what the gradient belongs to. They are not read.
handles: of the variables that it belongs to. They are not read.
same: `value`, in the same memory.
key: under which the process that differentiates has the gradient (ops/_gradients.py).
)");

class WithGradientOp : public GuardedOp {
 public:
  using GuardedOp::GuardedOp;
  void Run(tensorflow::OpKernelContext* context) override {
    context->set_output(0, context->input(0));
  }
  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("Largeout>WithGradient").Device(DEVICE_CPU), WithGradientOp);
REGISTER_KERNEL_BUILDER(Name("Largeout>WithGradient").Device(DEVICE_GPU).HostMemory("handles"), WithGradientOp);

}  // namespace largeout
