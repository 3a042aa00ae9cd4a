// What the GPU kernels of tree_softmax need from TensorFlow: scratch memory, and the tree's arrays on the
// device.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_OP_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_OP_H_

#include <algorithm>
#include <vector>

#include "common/op/tf_gpu_op.h"
#include "tree_softmax/cuda/tree_softmax_cuda.h"
#include "tree_softmax/op/tree_softmax_op.h"

namespace largeout {

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
// from there and copied to the GPU once: a kernel keeps its copies of the few tensors that it was last handed
// (heads may take turns). (Pairs and groups are int32 too, and stay in device memory between the loss and its
// gradient.) Holding on to the host tensor keeps its memory from being reused, so the same address means the
// same values (variables that change are given new memory while somebody holds the old).
class DeviceCopies {
 public:
  // Input `at` on the device. *held keeps it there while the caller uses it: another call of the kernel may
  // let go of the copy at any time.
  absl::Status Get(tensorflow::OpKernelContext* context, int at, std::vector<tensorflow::Tensor>* held,
                   const int32_t** data) {
    constexpr size_t kKept = 4;
    const tensorflow::Tensor& host = context->input(at);
    tensorflow::mutex_lock lock(mu_);
    if (static_cast<int>(copies_.size()) <= at) copies_.resize(at + 1);
    std::vector<Copy>& known = copies_[at];  // the last one used first
    auto copy = std::find_if(known.begin(), known.end(), [&](const Copy& c) {
      return c.host.data() == host.data() && c.host.NumElements() == host.NumElements();
    });
    if (copy == known.end()) {
      tensorflow::Tensor device;
      TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_INT32, host.shape(), &device));
      TF_RETURN_IF_ERROR(
          GpuStatus(CopyToDeviceCuda(host.data(), host.TotalBytes(), device.data(), ContextStream(context))));
      // Trees that nobody else has any more, and the one that was not used for longest.
      known.erase(
          std::remove_if(known.begin(), known.end(), [](const Copy& c) { return c.host.RefCountIsOne(); }),
          known.end());
      if (known.size() == kKept) known.pop_back();
      copy = known.insert(known.end(), Copy{host, device});
    }
    std::rotate(known.begin(), copy, copy + 1);
    held->push_back(known.front().device);
    *data = Data<int32_t>(known.front().device);
    return absl::OkStatus();
  }

 private:
  struct Copy {
    tensorflow::Tensor host, device;
  };
  tensorflow::mutex mu_;
  std::vector<std::vector<Copy>> copies_ TF_GUARDED_BY(mu_);  // of every input
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_OP_H_
