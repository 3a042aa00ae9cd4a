// What the GPU glue shares (only *_gpu_op.cc files include it): the context's stream, errors, scratch memory, and
// variables that are about to be updated.
#ifndef LARGEOUT_COMMON_TF_GPU_OP_H_
#define LARGEOUT_COMMON_TF_GPU_OP_H_

#include <cuda_runtime_api.h>

#include <algorithm>

#include "common/cuda/cuda.h"
#include "common/op/call_op.h"
#include "common/op/tf_op.h"

namespace largeout {

inline GpuStream ContextStream(tensorflow::OpKernelContext* context) {
  return context->eigen_gpu_device().stream();
}

inline absl::Status GpuStatus(int error) {
  if (error == cudaSuccess) return absl::OkStatus();
  if (error == cudaErrorMemoryAllocation) {
    return absl::ResourceExhaustedError("CUDA: no device memory is left for scratch memory");
  }
  return absl::InternalError(absl::StrCat("CUDA: ", CudaErrorName(error)));
}

// One call of a facade for GPUs. TensorFlow keeps memory of the device, so `kept` is not asked for any.
template <>
class OpCall<GpuCall> {
 public:
  explicit OpCall(tensorflow::OpKernelContext* context, KeptMemory* = nullptr)
      : context_(context), stream_(ContextStream(context)), scratch_(context) {}

  tensorflow::OpKernelContext* context() const { return context_; }
  GpuCall get() { return {stream_, &scratch_}; }
  absl::Status Status(int error) const {
    return error == kNoMemory && !scratch_.status().ok() ? scratch_.status() : GpuStatus(error);
  }
  int Copy(const void* from, int64_t bytes, void* to) { return CopyOnDeviceCuda(from, bytes, to, stream_); }

 private:
  tensorflow::OpKernelContext* context_;
  const GpuStream stream_;
  OpScratch scratch_;
};

// Memory of one call. TensorFlow hands it out again in the order of the stream, so it may go when the call
// returns.
inline absl::Status GpuWorkspace(tensorflow::OpKernelContext* context, int64_t bytes,
                                 tensorflow::Tensor* memory) {
  return context->allocate_temp(tensorflow::DT_UINT8, tensorflow::TensorShape({std::max<int64_t>(bytes, 1)}),
                                memory);
}

// Makes dense reads of the variable copy from now on, and gives it memory of its own if a read still holds the old
// one. TensorFlow's EnsureSparseVariableAccess does that for CPUs; for GPUs it needs kernels that only its own
// library has.
inline absl::Status OwnMemory(tensorflow::OpKernelContext* context, tensorflow::Var* variable) {
  if (variable->copy_on_read_mode.load()) return absl::OkStatus();
  tensorflow::mutex_lock lock(*variable->mu());
  if (variable->copy_on_read_mode.load()) return absl::OkStatus();
  if (!variable->tensor()->RefCountIsOne()) {
    tensorflow::Tensor copy;
    tensorflow::AllocatorAttributes attributes;
    attributes.set_gpu_compatible(true);
    attributes.set_nic_compatible(true);
    TF_RETURN_IF_ERROR(context->allocate_temp(variable->tensor()->dtype(), variable->tensor()->shape(), &copy,
                                              attributes));
    TF_RETURN_IF_ERROR(GpuStatus(CopyOnDeviceCuda(variable->tensor()->data(), copy.TotalBytes(), copy.data(),
                                                  ContextStream(context))));
    *variable->tensor() = copy;
  }
  variable->copy_on_read_mode.store(true);
  return absl::OkStatus();
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_TF_GPU_OP_H_
