// What the GPU glue shares (only *_gpu_op.cc files include it): the context's stream, errors, and scratch
// memory.
#ifndef LARGEOUT_COMMON_TF_GPU_OP_H_
#define LARGEOUT_COMMON_TF_GPU_OP_H_

#include <algorithm>

#include "common/cuda.h"
#include "common/tf_op.h"

namespace largeout {

inline GpuStream ContextStream(tensorflow::OpKernelContext* context) {
  return context->eigen_gpu_device().stream();
}

inline absl::Status GpuStatus(int error) {
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA: ", CudaErrorName(error)));
}

// Memory of one call. TensorFlow hands it out again in the order of the stream, so it may go when the call
// returns.
inline absl::Status GpuWorkspace(tensorflow::OpKernelContext* context, int64_t bytes,
                                 tensorflow::Tensor* memory) {
  return context->allocate_temp(tensorflow::DT_UINT8, tensorflow::TensorShape({std::max<int64_t>(bytes, 1)}),
                                memory);
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_TF_GPU_OP_H_
