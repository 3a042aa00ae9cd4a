// The kernels of VocabularyFind and VocabularyUpdate: validate, lock, call. Device: VocabularyCpu.
#ifndef LARGEOUT_VOCABULARY_VOCABULARY_KERNEL_OP_H_
#define LARGEOUT_VOCABULARY_VOCABULARY_KERNEL_OP_H_

#include <string>

#include "common/op/locked_variables_op.h"
#include "common/op/shapes_op.h"
#include "vocabulary/op/vocabulary_shapes_op.h"

namespace largeout {

// With the lock of `keys` held.
inline absl::Status CheckKeys(const tensorflow::Tensor& keys) {
  if (keys.dims() == 1) return CheckCapacity(keys.NumElements());
  return absl::InvalidArgumentError(
      absl::StrCat("`keys` must have the shape [capacity]. Received: shape ", keys.shape().DebugString()));
}

inline absl::Status CheckVocabularyIds(const tensorflow::Tensor& ids) {
  if (ids.dims() == 1 && ids.NumElements() <= INT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`ids` must have the shape [n], n < 2^31. Received: shape ", ids.shape().DebugString()));
}

template <typename Device>
class VocabularyFindOp final : public GuardedOp {
 public:
  using GuardedOp::GuardedOp;

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& ids = context->input(1);
    OP_REQUIRES_OK(context, CheckVocabularyIds(ids));
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 0, tensorflow::DT_INT64, "keys"));
    variables.Lock();
    OP_REQUIRES_OK(context, CheckKeys(variables[0]));
    tensorflow::Tensor* rows;
    OP_REQUIRES_OK(context, context->allocate_output(0, ids.shape(), &rows));
    OpCall<typename Device::Call> call(context);
    Device device(call.get());
    OP_REQUIRES_OK(context,
                   call.Status(device.Find(Data<int64_t>(variables[0]), variables[0].NumElements(),
                                           Data<int64_t>(ids), ids.NumElements(), Data<int64_t>(rows))));
  }
};

template <typename Device>
class VocabularyUpdateOp final : public GuardedOp {
 public:
  explicit VocabularyUpdateOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    std::string evict;
    OP_REQUIRES_OK(context, context->GetAttr("admit_after", &rules_.admit_after));
    OP_REQUIRES_OK(context, context->GetAttr("evict", &evict));
    OP_REQUIRES_OK(context, CheckAdmitAfter(rules_.admit_after));
    rules_.evict = evict == "lru" ? Evict::kLru : Evict::kLfu;
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& ids = context->input(4);
    OP_REQUIRES_OK(context, CheckVocabularyIds(ids));
    LockedVariables variables;
    int at = 0;
    for (const char* name : {"keys", "scores", "sketch", "clock"}) {
      const tensorflow::DataType dtype = at == 2 ? tensorflow::DT_UINT8 : tensorflow::DT_INT64;
      OP_REQUIRES_OK(context, variables.Find(context, at++, dtype, name, LockedVariables::kWrite));
    }
    OP_REQUIRES_OK(context, variables.CheckDifferent("`keys`, `scores`, `sketch` and `clock`"));
    variables.Lock();
    OP_REQUIRES_OK(context, CheckShapes(variables));
    // Memory for all that comes out, before anything is changed.
    tensorflow::Tensor *rows, replaced;
    OP_REQUIRES_OK(context, context->allocate_output(0, ids.shape(), &rows));
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_INT64, ids.shape(), &replaced));
    OpCall<typename Device::Call> call(context, &kept_);
    OP_REQUIRES_OK(context, variables.Own(&call));
    const VocabularyView view = {Data<int64_t>(variables.writable(0)),
                                 Data<int64_t>(variables.writable(1)),
                                 variables[0].NumElements(),
                                 Data<uint8_t>(variables.writable(2)),
                                 variables[2].dim_size(0),
                                 Data<int64_t>(variables.writable(3))};
    Device device(call.get());
    int64_t num_replaced = 0;
    OP_REQUIRES_OK(context,
                   call.Status(device.Update(view, rules_, Data<int64_t>(ids), ids.NumElements(),
                                             Data<int64_t>(rows), Data<int64_t>(&replaced), &num_replaced)));
    context->set_output(1, replaced.Slice(0, num_replaced));
  }

 private:
  // Call with the locks held.
  absl::Status CheckShapes(const LockedVariables& variables) const {
    TF_RETURN_IF_ERROR(CheckKeys(variables[0]));
    TF_RETURN_IF_ERROR(CheckShape(variables[1], "scores", variables[0].shape()));
    const tensorflow::Tensor& sketch = variables[2];
    if (sketch.dims() != 2 || sketch.dim_size(1) != kCountersPerBlock) {
      return absl::InvalidArgumentError(absl::StrCat("`sketch` must have the shape [blocks, ",
                                                     kCountersPerBlock, "]. Received: shape ",
                                                     sketch.shape().DebugString()));
    }
    TF_RETURN_IF_ERROR(CheckBlocks(sketch.dim_size(0), rules_.admit_after));
    return CheckShape(variables[3], "clock", tensorflow::TensorShape({2}));
  }

  VocabularyRules rules_ = {1, Evict::kLfu};
  KeptMemory kept_;
};

}  // namespace largeout

#endif  // LARGEOUT_VOCABULARY_VOCABULARY_KERNEL_OP_H_
