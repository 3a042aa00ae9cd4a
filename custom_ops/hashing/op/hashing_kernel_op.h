// The kernels of XxHash64 and CategoryHash: validate, allocate, call. Device: HashingCpu.
#ifndef LARGEOUT_HASHING_HASHING_KERNEL_OP_H_
#define LARGEOUT_HASHING_HASHING_KERNEL_OP_H_

#include <vector>

#include "common/op/call_op.h"
#include "hashing/hashing.h"
#include "hashing/op/hashing_shapes_op.h"

namespace largeout {

inline void ViewStrings(const void* data, int64_t begin, int64_t n, Bytes* out) {
  const auto* strings = static_cast<const tensorflow::tstring*>(data) + begin;
  for (int64_t i = 0; i < n; ++i) out[i] = {strings[i].data(), static_cast<int64_t>(strings[i].size())};
}

inline CategoryColumn ColumnOf(const tensorflow::Tensor& values) {
  switch (values.dtype()) {
    case tensorflow::DT_INT32:
      return {CategoryKind::kInt32, values.data(), nullptr};
    case tensorflow::DT_INT64:
      return {CategoryKind::kInt64, values.data(), nullptr};
    case tensorflow::DT_UINT64:
      return {CategoryKind::kUint64, values.data(), nullptr};
    default:
      return {CategoryKind::kStrings, values.data(), ViewStrings};
  }
}

inline absl::Status CheckCategories(const tensorflow::Tensor& values, int64_t n) {
  if (values.dims() == 1 && values.NumElements() == n) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`values` must have the shape [n], the same n all of them. ",
                                                 "Received: shape ", values.shape().DebugString()));
}

template <typename Device>
class XxHash64Op final : public GuardedOp {
 public:
  explicit XxHash64Op(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("seed", &seed_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& values = context->input(0);
    OP_REQUIRES_OK(context, CheckCategories(values, values.NumElements()));
    tensorflow::Tensor* hashes;
    OP_REQUIRES_OK(context, context->allocate_output(0, values.shape(), &hashes));
    OpCall<typename Device::Call> call(context);
    Device device(call.get());
    OP_REQUIRES_OK(
        context, call.Status(device.Hash(ColumnOf(values), values.NumElements(), static_cast<uint64_t>(seed_),
                                         hashes->flat<uint64_t>().data())));
  }

 private:
  int64_t seed_ = 0;
};

template <typename Device>
class CategoryHashOp final : public GuardedOp {
 public:
  explicit CategoryHashOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    std::vector<int64_t> seeds;
    OP_REQUIRES_OK(context, context->GetAttr("seeds", &seeds));
    OP_REQUIRES_OK(context, context->GetAttr("num_bins", &num_bins_));
    OP_REQUIRES_OK(context, context->GetAttr("first", &first_));
    OP_REQUIRES_OK(context, CheckBins(num_bins_, first_, static_cast<int64_t>(seeds.size())));
    seeds_.assign(seeds.begin(), seeds.end());
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const int64_t n = context->input(0).NumElements(), k = static_cast<int64_t>(seeds_.size());
    std::vector<CategoryColumn> columns;
    for (int i = 0; i < context->num_inputs(); ++i) {
      OP_REQUIRES_OK(context, CheckCategories(context->input(i), n));
      columns.push_back(ColumnOf(context->input(i)));
    }
    tensorflow::TensorShape shape;
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(n));
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(k));
    tensorflow::Tensor* ids;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &ids));
    OpCall<typename Device::Call> call(context);
    Device device(call.get());
    const CategoryRules rules = {seeds_.data(), k, num_bins_, first_};
    OP_REQUIRES_OK(
        context, call.Status(device.Categories(columns.data(), static_cast<int64_t>(columns.size()), n, rules,
                                               Data<int64_t>(ids))));
  }

 private:
  std::vector<uint64_t> seeds_;
  int64_t num_bins_ = 2, first_ = 0;
};

}  // namespace largeout

#endif  // LARGEOUT_HASHING_HASHING_KERNEL_OP_H_
