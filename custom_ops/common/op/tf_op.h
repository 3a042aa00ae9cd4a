// What the TensorFlow glue shares (only *_op.cc files include it): the context's threads as a Parallel, tables behind
// resource handles, and types.
#ifndef LARGEOUT_COMMON_TF_OP_H_
#define LARGEOUT_COMMON_TF_OP_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/parallel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/kernels/training_op_helpers.h"

namespace largeout {

// The pool of the op's context.
class ContextParallel final : public Parallel {
 public:
  explicit ContextParallel(tensorflow::OpKernelContext* context)
      : workers_(*context->device()->tensorflow_cpu_worker_threads()) {}
  int threads() const override { return workers_.num_threads; }
  void For(int64_t n, int64_t cost, const Body& body) override {
    if (n > 0) workers_.workers->ParallelFor(n, cost, body);
  }

 private:
  const tensorflow::DeviceBase::CpuWorkerThreads workers_;
};

// The kernel's type for a TensorFlow type of the same layout.
template <typename T>
struct KernelType {
  using type = T;
};
template <>
struct KernelType<Eigen::bfloat16> {
  using type = bfloat16;
};
template <typename T>
const typename KernelType<T>::type* Data(const tensorflow::Tensor& tensor) {
  return reinterpret_cast<const typename KernelType<T>::type*>(tensor.flat<T>().data());
}
template <typename T>
typename KernelType<T>::type* Data(tensorflow::Tensor* tensor) {
  return reinterpret_cast<typename KernelType<T>::type*>(tensor->flat<T>().data());
}

// The variable behind input `index`, checked to be initialised and of type `dtype`. `what` names it in errors.
inline absl::Status LookupTable(tensorflow::OpKernelContext* context, int index, tensorflow::DataType dtype, const char* what,
                                tensorflow::core::RefCountPtr<tensorflow::Var>* variable) {
  absl::Status found = tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, index), variable);
  if (!found.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("`", what, "` must be an initialized variable on the device of the op. Received: ", found.message()));
  }
  if ((*variable)->tensor()->dtype() != dtype) {
    return absl::InvalidArgumentError(absl::StrCat("`", what, "` must be of type ", tensorflow::DataTypeString(dtype),
                                                   ". Received: ",
                                                   tensorflow::DataTypeString((*variable)->tensor()->dtype())));
  }
  return absl::OkStatus();
}

// The shape of the variable behind a resource input; unknown where the graph does not know it.
inline tensorflow::shape_inference::ShapeHandle TableShape(tensorflow::shape_inference::InferenceContext* c, int index) {
  const auto* handles = c->input_handle_shapes_and_types(index);
  return handles != nullptr && !handles->empty() ? (*handles)[0].shape : c->UnknownShape();
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_TF_OP_H_
