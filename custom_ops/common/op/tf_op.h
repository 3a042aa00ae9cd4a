// Helpers of the TensorFlow glue: the context's threads as a Parallel, types, and the shapes of variables.
#ifndef LARGEOUT_COMMON_TF_OP_H_
#define LARGEOUT_COMMON_TF_OP_H_

#include <atomic>
#include <new>
#include <stdexcept>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/parallel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace largeout {

// The pool of the op's context.
class ContextParallel final : public Parallel {
 public:
  explicit ContextParallel(tensorflow::OpKernelContext* context)
      : workers_(*context->device()->tensorflow_cpu_worker_threads()) {}
  int threads() const override { return workers_.num_threads; }
  // Throws std::bad_alloc where the body threw that in some worker: past the pool no exception may go.
  void For(int64_t n, int64_t cost, const Body& body) override {
    if (n <= 0) return;
    std::atomic<bool> no_memory{false};
    workers_.workers->ParallelFor(n, cost, [&](int64_t begin, int64_t end) {
      try {
        body(begin, end);
      } catch (const std::bad_alloc&) {
        no_memory = true;
      } catch (const std::length_error&) {
        no_memory = true;
      }
    });
    if (no_memory) throw std::bad_alloc();
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

// The shape of the variable behind a resource input; unknown where the graph does not know it.
inline tensorflow::shape_inference::ShapeHandle TableShape(tensorflow::shape_inference::InferenceContext* c, int index) {
  const auto* handles = c->input_handle_shapes_and_types(index);
  return handles != nullptr && !handles->empty() ? (*handles)[0].shape : c->UnknownShape();
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_TF_OP_H_
