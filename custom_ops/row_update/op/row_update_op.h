// What the CPU and the GPU kernel of RowUpdate share: finding, locking and checking its variables.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_OP_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_OP_H_

#include <algorithm>
#include <string>
#include <vector>

#include "common/op/tf_op.h"
#include "row_update/row_update.h"

namespace largeout {

// Locks in the order of addresses, so that two updates that share variables cannot wait for each other.
class Locks {
 public:
  explicit Locks(std::vector<tensorflow::Var*> variables) {
    std::sort(variables.begin(), variables.end());
    for (tensorflow::Var* variable : variables) {
      variable->mu()->lock();
      locked_.push_back(variable);
    }
  }
  ~Locks() {
    for (auto it = locked_.rbegin(); it != locked_.rend(); ++it) (*it)->mu()->unlock();
  }

 private:
  std::vector<tensorflow::Var*> locked_;
};

// The variables of one update, and the checks that CPU and GPU kernels share.
struct Update {
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> slots;
  std::vector<tensorflow::Var*> all;

  absl::Status Find(tensorflow::OpKernelContext* context, tensorflow::DataType dtype, int count) {
    TF_RETURN_IF_ERROR(LookupTable(context, 0, dtype, "variable", &variable));
    all.push_back(variable.get());
    slots.resize(count);
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(LookupTable(context, 1 + i, tensorflow::DT_FLOAT, "slots", &slots[i]));
      if (std::find(all.begin(), all.end(), slots[i].get()) != all.end()) {
        return absl::InvalidArgumentError(
            "`variable` and `slots` must be different variables. Received: one of them twice");
      }
      all.push_back(slots[i].get());
    }
    return absl::OkStatus();
  }

  // Call with the locks held.
  absl::Status CheckShapes(const UpdateRuleInfo& info, const tensorflow::Tensor& indices,
                           const tensorflow::Tensor& values, const tensorflow::Tensor& hyper) const {
    const tensorflow::TensorShape& shape = variable->tensor()->shape();
    if (shape.dims() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("`variable` must have at least one axis. Received: shape=", shape.DebugString()));
    }
    const tensorflow::TensorShape slot_shape =
        info.slot_per_row ? tensorflow::TensorShape({shape.dim_size(0)}) : shape;
    for (const auto& slot : slots) {
      if (slot->tensor()->shape() != slot_shape) {
        return absl::InvalidArgumentError(
            absl::StrCat("`slots` of rule `", info.name, "` must have the shape ", slot_shape.DebugString(),
                         ". Received: ", slot->tensor()->shape().DebugString()));
      }
    }
    if (indices.dims() != 1 || indices.NumElements() > INT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`indices` must have the shape [n], n < 2^31. Received: shape=", indices.shape().DebugString()));
    }
    tensorflow::TensorShape expected = shape;
    expected.set_dim(0, indices.dim_size(0));
    tensorflow::TensorShape column = expected;
    if (shape.dims() == 1) column.AddDim(1);
    if (values.shape() != expected && values.shape() != column) {
      return absl::InvalidArgumentError(
          absl::StrCat("`values` must have the shape ", expected.DebugString(),
                       ", one row per index. Received: ", values.shape().DebugString()));
    }
    if (hyper.dims() != 1 || hyper.NumElements() != info.hyper) {
      return absl::InvalidArgumentError(absl::StrCat("`hyper` of rule `", info.name,
                                                     "` must have the shape [", info.hyper,
                                                     "]. Received: shape=", hyper.shape().DebugString()));
    }
    return absl::OkStatus();
  }
};

class RowUpdateOpBase : public tensorflow::OpKernel {
 public:
  explicit RowUpdateOpBase(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    std::string name;
    int slots;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &name));
    OP_REQUIRES_OK(context, context->GetAttr("N", &slots));
    OP_REQUIRES(context, FindUpdateRule(name.c_str(), &rule_),
                absl::InvalidArgumentError(absl::StrCat("`rule` must be a known rule. Received: ", name)));
    OP_REQUIRES(context, slots == info().slots,
                absl::InvalidArgumentError(absl::StrCat("`slots` of rule `", name, "` must be ", info().slots,
                                                        " variables. Received: ", slots)));
  }

 protected:
  const UpdateRuleInfo& info() const { return kUpdateRuleInfo[static_cast<int>(rule_)]; }
  absl::Status IndexError(int64_t position, int64_t index, int64_t rows) const {
    return absl::InvalidArgumentError(absl::StrCat("`indices` must be in [0, ", rows,
                                                   "), the rows of `variable`. Received: ", "indices[",
                                                   position, "] = ", index, "; nothing was updated"));
  }
  UpdateRule rule_;
};

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_OP_H_
