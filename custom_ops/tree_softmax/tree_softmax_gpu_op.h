// What the GPU kernels of tree_softmax need from TensorFlow: errors, scratch memory, and the tree's arrays on
// the device.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_OP_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_OP_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "tree_softmax/tree_softmax_cuda.h"
#include "tree_softmax/tree_softmax_op.h"

namespace largeout {

inline absl::Status CudaStatus(int error) {
  if (error == 0) return absl::OkStatus();
  if (error == cudaErrorMemoryAllocation) {
    return absl::ResourceExhaustedError("tree_softmax: no device memory is left for scratch memory");
  }
  return absl::InternalError(absl::StrCat("CUDA error in tree_softmax: ", CudaErrorName(error)));
}

inline GpuStream StreamOf(tensorflow::OpKernelContext* context) {
  return context->eigen_gpu_device().stream();
}

// Scratch memory of one call. TensorFlow hands it out again in the order of the stream, so it may go when the
// call returns.
class ContextScratch final : public GpuScratch {
 public:
  explicit ContextScratch(tensorflow::OpKernelContext* context) : context_(context) {}
  void* Allocate(int64_t bytes) override {
    tensorflow::Tensor piece;
    if (!context_->allocate_temp(tensorflow::DT_UINT8, {std::max<int64_t>(bytes, 1)}, &piece).ok())
      return nullptr;
    pieces_.push_back(piece);
    return piece.data();
  }

 private:
  tensorflow::OpKernelContext* context_;
  std::vector<tensorflow::Tensor> pieces_;
};

// TensorFlow keeps int32 variables and constants in the memory of the host. The arrays of the tree are taken
// from there and copied to the GPU once: a kernel keeps its copy for as long as it is handed the same tensor.
// (Pairs and groups are int32 too, and stay in device memory between the loss and its gradient.) Holding on
// to the host tensor keeps its memory from being reused, so the same address means the same values (variables
// that change are given new memory while somebody holds the old).
class DeviceCopies {
 public:
  absl::Status Get(tensorflow::OpKernelContext* context, int at, const int32_t** data) {
    const tensorflow::Tensor& host = context->input(at);
    tensorflow::mutex_lock lock(mu_);
    if (static_cast<int>(copies_.size()) <= at) copies_.resize(at + 1);
    Copy& copy = copies_[at];
    if (copy.host.data() != host.data() || copy.host.NumElements() != host.NumElements()) {
      copy = Copy();
      TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_INT32, host.shape(), &copy.device));
      TF_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(copy.device.data(), host.data(), host.TotalBytes(),
                                                    cudaMemcpyHostToDevice, StreamOf(context))));
      copy.host = host;
    }
    *data = Data<int32_t>(copy.device);
    return absl::OkStatus();
  }

 private:
  struct Copy {
    tensorflow::Tensor host, device;
  };
  tensorflow::mutex mu_;
  std::vector<Copy> copies_ TF_GUARDED_BY(mu_);
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_OP_H_
