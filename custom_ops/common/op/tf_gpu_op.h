// Helpers of the GPU glue (only *_gpu_op.cc files include it): the context's stream, errors, and calls of launchers.
#ifndef LARGEOUT_COMMON_TF_GPU_OP_H_
#define LARGEOUT_COMMON_TF_GPU_OP_H_

#include <cuda_runtime_api.h>

#include <algorithm>

#include "common/cuda/cuda.h"
#include "common/cuda/late_report.h"
#include "common/op/call_op.h"
#include "common/op/tf_op.h"
#include "tsl/platform/tensor_float_32_utils.h"

namespace largeout {

inline GpuStream ContextStream(tensorflow::OpKernelContext* context) {
  return context->eigen_gpu_device().stream();
}

inline absl::Status GpuStatus(int error) {
  if (error == cudaSuccess) return absl::OkStatus();
  if (error == cudaErrorMemoryAllocation) {
    return absl::ResourceExhaustedError("CUDA: no device memory is left for scratch memory");
  }
  return absl::InternalError(absl::StrCat("CUDA: ", CudaErrorText(error)));
}

// One call of a launcher for GPUs. TensorFlow keeps memory of the device, so `kept` is not asked for any.
template <>
class OpCall<GpuCall> {
 public:
  explicit OpCall(tensorflow::OpKernelContext* context, KeptMemory* = nullptr, LateReport* late = nullptr)
      : context_(context), stream_(ContextStream(context)), late_(late), scratch_(context) {}

  tensorflow::OpKernelContext* context() const { return context_; }
  // Products are as exact as those of TensorFlow's own ops: `tf.config.experimental`'s TF32, on by default.
  GpuCall get() { return {stream_, &scratch_, late_, tsl::tensor_float_32_execution_enabled(), true}; }
  absl::Status Status(int error) const {
    return error == kNoMemory && !scratch_.status().ok() ? scratch_.status() : GpuStatus(error);
  }
  int Copy(const void* from, int64_t bytes, void* to) { return CopyOnDeviceCuda(from, bytes, to, stream_); }

 private:
  tensorflow::OpKernelContext* context_;
  const GpuStream stream_;
  LateReport* const late_;
  OpScratch scratch_;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_TF_GPU_OP_H_
