// The base of every kernel: memory that is not there is an error of the op, not the end of the process.
#ifndef LARGEOUT_COMMON_GUARDED_OP_H_
#define LARGEOUT_COMMON_GUARDED_OP_H_

#include <new>
#include <stdexcept>

#include "common/op/tf_op.h"

namespace largeout {

// TensorFlow's own code knows no exceptions, and one that reaches it ends the process. Containers of the
// kernels throw where they get no memory: here (ContextParallel brings what a worker throws) it becomes a
// status.
class GuardedOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) final {
    try {
      Run(context);
    } catch (const std::bad_alloc&) {
      OutOfMemory(context);
    } catch (const std::length_error&) {  // of a container: larger than any memory
      OutOfMemory(context);
    }
  }

 protected:
  virtual void Run(tensorflow::OpKernelContext* context) = 0;

 private:
  void OutOfMemory(tensorflow::OpKernelContext* context) const {
    context->CtxFailure(absl::ResourceExhaustedError(
        absl::StrCat(type_string(), " needs more host memory for its work than there is")));
  }
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_GUARDED_OP_H_
