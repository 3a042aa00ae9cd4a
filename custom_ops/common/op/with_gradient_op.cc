#include "common/op/guarded_op.h"

namespace largeout {

using tensorflow::DEVICE_CPU;
using tensorflow::DEVICE_GPU;

REGISTER_OP("Largeout>WithGradient")
    .Input("values: T")
    .Input("inputs: S")
    .Input("handles: num_handles * resource")
    .Output("same: T")
    .Attr("T: list(type) >= 1")
    .Attr("S: list(type) >= 0")
    .Attr("num_handles: int >= 0")
    .Attr("key: string")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    })
    .Doc(R"(`values` as they are, of which `key` names the gradient.

values: of any shapes.
inputs: what the gradient belongs to. They are not read.
handles: of the variables that it belongs to. They are not read.
same: `values`, in the same memory.
key: under which the process that differentiates has the gradient (ops/_gradients.py).
)");

class WithGradientOp : public GuardedOp {
 public:
  using GuardedOp::GuardedOp;
  void Run(tensorflow::OpKernelContext* context) override {
    for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
  }
  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("Largeout>WithGradient").Device(DEVICE_CPU), WithGradientOp);
REGISTER_KERNEL_BUILDER(Name("Largeout>WithGradient").Device(DEVICE_GPU).HostMemory("handles"), WithGradientOp);

}  // namespace largeout
