// The kernels of RecordUpdate, WriteRecords and GatherRecords: validate, lock, call. Device: RecordsCpu.
#ifndef LARGEOUT_ROW_UPDATE_RECORDS_KERNEL_OP_H_
#define LARGEOUT_ROW_UPDATE_RECORDS_KERNEL_OP_H_

#include <string>

#include "common/op/locked_variables_op.h"
#include "row_update/op/records_shapes_op.h"
#include "row_update/op/row_rule_op.h"

namespace largeout {

// What the ops of records share: the attributes, and the words of errors.
class RecordsOp : public GuardedOp {
 public:
  explicit RecordsOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &layout_.dim));
    OP_REQUIRES_OK(context, CheckDim(layout_.dim));
    layout_.value_bytes = tensorflow::DataTypeSize(dtype_);
  }

 protected:
  std::string Row() const {
    return absl::StrCat("a row of ", layout_.dim, " ", tensorflow::DataTypeString(dtype_));
  }

  RecordLayout layout_ = {};
  tensorflow::DataType dtype_ = tensorflow::DT_FLOAT;
};

template <typename Device, typename T, typename G, typename Id>
class RecordUpdateOp final : public RecordsOp {
 public:
  explicit RecordUpdateOp(tensorflow::OpKernelConstruction* context) : RecordsOp(context) {
    std::string name;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &name));
    OP_REQUIRES(context, FindUpdateRule(name.c_str(), &rule_),
                absl::InvalidArgumentError(absl::StrCat("`rule` must be a known rule. Received: ", name)));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor &indices = context->input(1), &values = context->input(2),
                             &hyper = context->input(3);
    StepNumbers numbers(nullptr);
    OP_REQUIRES_OK(context, FindStepNumbers(dtype_, hyper, context->input(4), &numbers));
    OP_REQUIRES_OK(context, CheckInputs(indices, values, hyper));
    LockedVariables variables;
    OP_REQUIRES_OK(context,
                   variables.Find(context, 0, tensorflow::DT_FLOAT, "variable", LockedVariables::kWrite));
    variables.Lock();
    OpCall<typename Device::Call> call(context);
    const char* name = kUpdateRuleInfo[static_cast<int>(rule_)].name;
    OP_REQUIRES_OK(context, CheckRecords(variables[0], layout_.Words(rule_),
                                         absl::StrCat(Row(), " with the slots of rule `", name, "`")));
    OP_REQUIRES_OK(context, variables.Own(&call));
    const int64_t rows = variables[0].dim_size(0), words = variables[0].dim_size(1);
    Device device(call.get());
    BadIndex bad;
    using Value = typename KernelType<T>::type;
    OP_REQUIRES_OK(context, call.Status(device.template Update<Value>(
                                rule_, Data<float>(variables.writable(0)), rows, words, layout_.dim,
                                Data<Id>(indices), indices.NumElements(), Data<G>(values), numbers, &bad)));
    OP_REQUIRES_OK(context, CheckIndex(bad, rows, "; nothing was updated"));
  }

 private:
  absl::Status CheckInputs(const tensorflow::Tensor& indices, const tensorflow::Tensor& values,
                           const tensorflow::Tensor& hyper) const {
    TF_RETURN_IF_ERROR(CheckIndices(indices));
    const UpdateRuleInfo& info = kUpdateRuleInfo[static_cast<int>(rule_)];
    if (values.dims() != 2 || values.dim_size(0) != indices.dim_size(0) ||
        values.dim_size(1) != layout_.dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("`values` must have the shape [", indices.dim_size(0), ",", layout_.dim,
                       "], one row per index. Received: ", values.shape().DebugString()));
    }
    if (hyper.dims() != 1 || hyper.NumElements() != info.hyper) {
      return absl::InvalidArgumentError(absl::StrCat("`hyper` of rule `", info.name,
                                                     "` must have the shape [", info.hyper,
                                                     "]. Received: shape=", hyper.shape().DebugString()));
    }
    return absl::OkStatus();
  }

  UpdateRule rule_ = UpdateRule::kSgd;
};

template <typename Device, typename Id>
class WriteRecordsOp final : public GuardedOp {
 public:
  using GuardedOp::GuardedOp;

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor &indices = context->input(1), &contents = context->input(2);
    OP_REQUIRES_OK(context, CheckIndices(indices));
    LockedVariables variables;
    OP_REQUIRES_OK(context,
                   variables.Find(context, 0, tensorflow::DT_FLOAT, "variable", LockedVariables::kWrite));
    variables.Lock();
    OP_REQUIRES_OK(context, CheckRecords(variables[0], RecordLayout::kMarkWords, "nothing else"));
    const int64_t rows = variables[0].dim_size(0), words = variables[0].dim_size(1);
    const int64_t n = indices.NumElements(), behind = words - RecordLayout::kMarkWords;
    OP_REQUIRES(context, contents.dims() == 2 && contents.dim_size(0) == n && contents.dim_size(1) == behind,
                absl::InvalidArgumentError(absl::StrCat(
                    "`contents` must have the shape [", n, ",", behind,
                    "], the words behind the mark of each record. Received: ", contents.shape().DebugString())));
    OpCall<typename Device::Call> call(context);
    OP_REQUIRES_OK(context, variables.Own(&call));
    BadIndex bad;
    OP_REQUIRES_OK(context, call.Status(Device(call.get()).Write(Data<float>(variables.writable(0)), rows,
                                                                 words, Data<Id>(indices), n,
                                                                 Data<float>(contents), &bad)));
    OP_REQUIRES_OK(context, CheckIndex(bad, rows, "; nothing was written"));
  }
};

template <typename Device, typename Id>
class GatherRecordsOp final : public RecordsOp {
 public:
  using RecordsOp::RecordsOp;

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& indices = context->input(1);
    OP_REQUIRES_OK(context, CheckIndices(indices));
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 0, tensorflow::DT_FLOAT, "variable"));
    variables.Lock();
    OP_REQUIRES_OK(context, CheckRecords(variables[0], layout_.Words(), Row()));
    const int64_t rows = variables[0].dim_size(0), words = variables[0].dim_size(1);
    tensorflow::TensorShape shape = indices.shape();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(layout_.dim));
    tensorflow::Tensor *out, *written;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &out));
    OP_REQUIRES_OK(context, context->allocate_output(1, indices.shape(), &written));
    OpCall<typename Device::Call> call(context);
    Device device(call.get());
    BadIndex bad;
    int64_t damaged;
    OP_REQUIRES_OK(context,
                   call.Status(device.Gather(layout_, Data<float>(variables[0]), rows, words, Data<Id>(indices),
                                             indices.NumElements(), out->data(), Data<bool>(written),
                                             CheckedRows(variables[0]), &damaged, &bad)));
    OP_REQUIRES_OK(context, CheckIndex(bad, rows, ""));
    OP_REQUIRES_OK(context, CheckWhole(variables[0], Data<Id>(indices), damaged));
  }
};

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_RECORDS_KERNEL_OP_H_
