// The rule of an op, the variables it updates and its numbers: what every op with `rule`, `slots`, `hyper`
// and `rounding` checks.
#ifndef LARGEOUT_ROW_UPDATE_ROW_RULE_OP_H_
#define LARGEOUT_ROW_UPDATE_ROW_RULE_OP_H_

#include <string>

#include "common/op/locked_variables_op.h"
#include "row_update/row_update.h"

#define LARGEOUT_RULE_ATTRIBUTE \
  Attr("rule: {'sgd', 'momentum', 'nesterov', 'adagrad', 'row_wise_adagrad', 'lazy_adam', 'ftrl'}")

namespace largeout {

inline absl::Status CheckSlotCount(const UpdateRuleInfo& info, int slots) {
  if (slots == info.slots) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`slots` of rule `", info.name, "` must be ", info.slots,
                                                 " variables. Received: ", slots));
}

// `rounding`, of rows of type `dtype`: [0], or what bfloat16 is rounded by.
inline absl::Status CheckRounding(tensorflow::DataType dtype, int dims, int64_t numbers,
                                  const std::string& shape) {
  if (dims != 1 || (numbers != 0 && numbers != kRoundingNumbers)) {
    return absl::InvalidArgumentError(absl::StrCat("`rounding` must have the shape [0], or [",
                                                   kRoundingNumbers, "]. Received: shape=", shape));
  }
  if (numbers == 0 || dtype == tensorflow::DT_BFLOAT16) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`rounding` must have the shape [0] where rows are not bfloat16: ",
                   "nothing is rounded there. Received: shape=", shape, " and rows of ",
                   tensorflow::DataTypeString(dtype)));
}

// In a kernel: both inputs as a launcher takes them.
inline absl::Status FindStepNumbers(tensorflow::DataType dtype, const tensorflow::Tensor& hyper,
                                    const tensorflow::Tensor& rounding, StepNumbers* numbers) {
  numbers->hyper = Data<float>(hyper);
  numbers->rounding = rounding.NumElements() == 0 ? nullptr : static_cast<const int64_t*>(rounding.data());
  return CheckRounding(dtype, rounding.dims(), rounding.NumElements(), rounding.shape().DebugString());
}

// In a shape function: the input `at`.
inline absl::Status RoundingShape(tensorflow::shape_inference::InferenceContext* c, int at) {
  tensorflow::DataType dtype;
  TF_RETURN_IF_ERROR(c->GetAttr("dtype", &dtype));
  tensorflow::shape_inference::ShapeHandle rounding;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(at), 1, &rounding));
  const tensorflow::shape_inference::DimensionHandle numbers = c->Dim(rounding, 0);
  return c->ValueKnown(numbers) ? CheckRounding(dtype, 1, c->Value(numbers), c->DebugString(rounding))
                                : absl::OkStatus();
}

// In a kernel. Inputs: the table at 0, its slots from 1 on.
class RowRule {
 public:
  explicit RowRule(tensorflow::OpKernelConstruction* context) {
    std::string name;
    int slots;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &name));
    OP_REQUIRES_OK(context, context->GetAttr("N", &slots));
    OP_REQUIRES(context, FindUpdateRule(name.c_str(), &rule_),
                absl::InvalidArgumentError(absl::StrCat("`rule` must be a known rule. Received: ", name)));
    OP_REQUIRES_OK(context, CheckSlotCount(info(), slots));
  }

  UpdateRule get() const { return rule_; }
  const UpdateRuleInfo& info() const { return kUpdateRuleInfo[static_cast<int>(rule_)]; }
  // The first input after the slots.
  int end() const { return 1 + info().slots; }

  // The table, of type `dtype`, and then its slots: to be written, different ones, and not locked yet.
  absl::Status Find(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                    LockedVariables* variables) const {
    TF_RETURN_IF_ERROR(variables->Find(context, 0, dtype, "variable", LockedVariables::kWrite));
    for (int i = 0; i < info().slots; ++i) {
      TF_RETURN_IF_ERROR(
          variables->Find(context, 1 + i, tensorflow::DT_FLOAT, "slots", LockedVariables::kWrite));
    }
    return variables->CheckDifferent("`variable` and `slots`");
  }

  // Call with the locks held. `variables` are those of Find, and perhaps others after them.
  absl::Status CheckShapes(const LockedVariables& variables, const tensorflow::Tensor& hyper) const {
    const tensorflow::TensorShape& shape = variables[0].shape();
    if (shape.dims() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("`variable` must have at least one axis. Received: shape=", shape.DebugString()));
    }
    const tensorflow::TensorShape slot_shape =
        info().slot_per_row ? tensorflow::TensorShape({shape.dim_size(0)}) : shape;
    for (int i = 1; i <= info().slots; ++i) {
      if (variables[i].shape() != slot_shape) {
        return absl::InvalidArgumentError(absl::StrCat("`slots` of rule `", info().name,
                                                       "` must have the shape ", slot_shape.DebugString(),
                                                       ". Received: ", variables[i].shape().DebugString()));
      }
    }
    if (hyper.dims() != 1 || hyper.NumElements() != info().hyper) {
      return absl::InvalidArgumentError(absl::StrCat("`hyper` of rule `", info().name,
                                                     "` must have the shape [", info().hyper,
                                                     "]. Received: shape=", hyper.shape().DebugString()));
    }
    return absl::OkStatus();
  }

  // The memory of the slots, in slots[0 .. kMaxSlots).
  void Slots(LockedVariables* variables, float** slots) const {
    for (int i = 0; i < kMaxSlots; ++i) {
      slots[i] = i < info().slots ? Data<float>(variables->writable(1 + i)) : nullptr;
    }
  }

 private:
  UpdateRule rule_ = UpdateRule::kSgd;
};

// In a shape function: the shape of the table at input 0, which those of the slots and of `hyper` fit.
inline absl::Status RowRuleShape(tensorflow::shape_inference::InferenceContext* c, int* slots, int hyper_after_slots,
                                 tensorflow::shape_inference::ShapeHandle* table) {
  using tensorflow::shape_inference::DimensionHandle;
  using tensorflow::shape_inference::ShapeHandle;
  std::string name;
  TF_RETURN_IF_ERROR(c->GetAttr("rule", &name));
  TF_RETURN_IF_ERROR(c->GetAttr("N", slots));
  UpdateRule rule = UpdateRule::kSgd;
  FindUpdateRule(name.c_str(), &rule);
  const UpdateRuleInfo& info = kUpdateRuleInfo[static_cast<int>(rule)];
  TF_RETURN_IF_ERROR(CheckSlotCount(info, *slots));
  ShapeHandle hyper;
  DimensionHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1 + *slots + hyper_after_slots), 1, &hyper));
  TF_RETURN_IF_ERROR(c->WithValue(c->Dim(hyper, 0), info.hyper, &unused));
  *table = TableShape(c, 0);
  if (!c->RankKnown(*table)) return absl::OkStatus();
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(*table, 1, table));
  for (int i = 0; i < *slots; ++i) {
    ShapeHandle slot = TableShape(c, 1 + i), expected = *table;
    if (info.slot_per_row) expected = c->Vector(c->Dim(*table, 0));
    TF_RETURN_IF_ERROR(c->Merge(slot, expected, &slot));
  }
  return absl::OkStatus();
}

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_RULE_OP_H_
