#include "common/isa.h"
#include "common/op/guarded_op.h"
#include "sources_digest.h"  // written by the build

#ifndef LARGEOUT_CUDA_VERSION
#define LARGEOUT_CUDA_VERSION ""
#endif

namespace largeout {

REGISTER_OP("Largeout>BuildInfo")
    .Output("info: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(5));
      return absl::OkStatus();
    })
    .Doc(R"(How this library was built and what it runs with.

info: [5]: the TensorFlow version of the build, the CUDA version of the build (empty: none), the compiler, the
  instruction-set level in use, a digest of the sources of the ops.
)");

class BuildInfoOp : public GuardedOp {
 public:
  using GuardedOp::GuardedOp;
  void Run(tensorflow::OpKernelContext* context) override {
    tensorflow::Tensor* info;
    OP_REQUIRES_OK(context, context->allocate_output(0, {5}, &info));
    auto out = info->vec<tensorflow::tstring>();
    out(0) = LARGEOUT_TF_VERSION;
    out(1) = LARGEOUT_CUDA_VERSION;
    out(2) = __VERSION__;
    out(3) = IsaName(CurrentIsa());
    out(4) = LARGEOUT_SOURCES_DIGEST;
  }
};

REGISTER_KERNEL_BUILDER(Name("Largeout>BuildInfo").Device(tensorflow::DEVICE_CPU), BuildInfoOp);

}  // namespace largeout
