// An op's context as launchers take it: threads, memory, and the status of an error.
#ifndef LARGEOUT_COMMON_CALL_OP_H_
#define LARGEOUT_COMMON_CALL_OP_H_

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/huge_pages.h"
#include "common/op/guarded_op.h"
#include "common/op/tf_op.h"
#include "common/scratch.h"

namespace largeout {

// Host memory that a kernel (an object that lives from step to step) keeps. New memory from the system in
// every step would cost a page fault every 4 KB. A piece is handed out again once nobody else holds it. Large
// ones are not kept.
class KeptMemory {
 public:
  absl::Status Take(int64_t bytes, tensorflow::OpKernelContext* context, tensorflow::Tensor* out) {
    constexpr int64_t kKeptBytes = int64_t{256} << 20;
    constexpr size_t kKeptPieces = 4;
    bytes = std::max<int64_t>(bytes, 1);
    tensorflow::mutex_lock lock(mu_);
    // The smallest free piece that is large enough; otherwise one that is too small makes room for the new
    // one.
    tensorflow::Tensor *fits = nullptr, *small = nullptr;
    for (tensorflow::Tensor& piece : pieces_) {
      if (piece.data() != nullptr && !piece.RefCountIsOne()) continue;
      tensorflow::Tensor*& best = piece.NumElements() >= bytes ? fits : small;
      if (best == nullptr || piece.NumElements() < best->NumElements()) best = &piece;
    }
    if (fits != nullptr) {
      *out = *fits;
      return absl::OkStatus();
    }
    const bool keep = bytes <= kKeptBytes && (small != nullptr || pieces_.size() < kKeptPieces);
    if (keep && small != nullptr) *small = tensorflow::Tensor();
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_UINT8, {bytes}, out));
    AdviseHugePages(out->data(), out->TotalBytes());
    if (keep && small != nullptr) {
      *small = *out;
    } else if (keep) {
      pieces_.push_back(*out);
    }
    return absl::OkStatus();
  }

 private:
  tensorflow::mutex mu_;
  std::vector<tensorflow::Tensor> pieces_ TF_GUARDED_BY(mu_);
};

// Memory of one call, of the op's device. On a GPU TensorFlow hands it out again in the order of the stream,
// so it may go when the call returns. With `kept` (host memory alone) pieces come from there.
class OpScratch final : public Scratch {
 public:
  explicit OpScratch(tensorflow::OpKernelContext* context, KeptMemory* kept = nullptr)
      : context_(context), kept_(kept) {}

  void* Allocate(int64_t bytes) override {
    tensorflow::Tensor piece;
    status_ = kept_ != nullptr
                  ? kept_->Take(bytes, context_, &piece)
                  : context_->allocate_temp(tensorflow::DT_UINT8, {std::max<int64_t>(bytes, 1)}, &piece);
    if (!status_.ok()) return nullptr;
    pieces_.push_back(piece);
    return piece.data();
  }

  // The memory, for somebody who keeps it for longer.
  std::vector<tensorflow::Tensor> Release() { return std::move(pieces_); }

  // Of the last allocation.
  const absl::Status& status() const { return status_; }

 private:
  tensorflow::OpKernelContext* context_;
  KeptMemory* kept_;
  std::vector<tensorflow::Tensor> pieces_;
  absl::Status status_;
};

// One call of a launcher from an op. Call is CpuCall, or GpuCall (tf_gpu_op.h):
//
//   OpCall<typename Device::Call> call(context);
//   Device device(call.get());
//   OP_REQUIRES_OK(context, call.Status(device.Method(...)));
//
// `late` is for ops whose calls on a GPU do not wait to learn whether indices are bad: the kernel keeps one.
template <typename Call>
class OpCall;

// Whether errors of such an op may come late on the device of Call.
template <typename Call>
constexpr bool kMayBeLate = !std::is_same_v<Call, CpuCall>;

template <>
class OpCall<CpuCall> {
 public:
  explicit OpCall(tensorflow::OpKernelContext* context, KeptMemory* kept = nullptr, CpuCall::Late* = nullptr)
      : context_(context), parallel_(context), scratch_(context, kept) {}

  tensorflow::OpKernelContext* context() const { return context_; }
  CpuCall get() { return {&parallel_, &scratch_}; }

  // `error`: what a method of a launcher returned.
  absl::Status Status(int error) const {
    if (error == 0) return absl::OkStatus();
    if (!scratch_.status().ok()) return scratch_.status();
    return absl::InternalError(absl::StrCat("a kernel failed with error ", error));
  }

  int Copy(const void* from, int64_t bytes, void* to) {
    parallel_.For(bytes, 1, [=](int64_t begin, int64_t end) {
      std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
    });
    return 0;
  }

 private:
  tensorflow::OpKernelContext* context_;
  ContextParallel parallel_;
  OpScratch scratch_;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CALL_OP_H_
