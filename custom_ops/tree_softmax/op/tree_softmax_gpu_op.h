// The tree's arrays on a GPU.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_OP_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_OP_H_

#include <algorithm>
#include <vector>

#include "common/op/tf_gpu_op.h"
#include "tree_softmax/op/tree_softmax_op.h"

namespace largeout {

// TensorFlow keeps int32 variables and constants in the memory of the host. The arrays of the tree are taken
// from there and copied to the GPU once: a kernel keeps its copies of the few tensors that it was last handed
// (heads may take turns). (Pairs and groups are int32 too, and stay in device memory between the loss and its
// gradient.) Holding on to the host tensor keeps its memory from being reused, so the same address means the
// same values (variables that change are given new memory while somebody holds the old).
template <>
class TreeOnDevice<GpuCall> {
 public:
  using Wanted = TreeOnDevice<CpuCall>::Wanted;

  // `held` keeps the arrays there while the caller uses them: another call of the kernel may let go of the
  // copies at any time.
  absl::Status Get(tensorflow::OpKernelContext* context, const Wanted& wanted,
                   std::vector<tensorflow::Tensor>* held) {
    for (const auto& [at, data] : wanted) TF_RETURN_IF_ERROR(GetOne(context, at, held, data));
    return absl::OkStatus();
  }

 private:
  absl::Status GetOne(tensorflow::OpKernelContext* context, int at, std::vector<tensorflow::Tensor>* held,
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
      // Trees that nobody else still has, and the one that was not used for longest.
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

  struct Copy {
    tensorflow::Tensor host, device;
  };
  tensorflow::mutex mu_;
  std::vector<std::vector<Copy>> copies_ TF_GUARDED_BY(mu_);  // of every input
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_OP_H_
