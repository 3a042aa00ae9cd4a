// The kernels of connections, pruning and regrowth on any device: validate, allocate, call. Device:
// FanInRewireCpu or FanInRewireGpu.
#ifndef LARGEOUT_FAN_IN_FAN_IN_REGROW_OP_H_
#define LARGEOUT_FAN_IN_FAN_IN_REGROW_OP_H_

#include <vector>

#include "fan_in/op/fan_in_rewire_op.h"

namespace largeout {

template <typename Device, typename Id>
class FanInConnectionsOp : public GuardedOp {
 public:
  using GuardedOp::GuardedOp;

  void Run(tensorflow::OpKernelContext* context) override {
    int64_t rows, fan_in, inputs, first_class;
    uint64_t key;
    OP_REQUIRES_OK(context, ReadScalar(context, 0, "num_rows", &rows));
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "fan_in", &fan_in));
    OP_REQUIRES_OK(context, ReadScalar(context, 2, "num_inputs", &inputs));
    OP_REQUIRES_OK(context, ReadScalar(context, 3, "first_class", &first_class));
    OP_REQUIRES_OK(context, ReadKey(context, 4, &key));
    OP_REQUIRES_OK(context, CheckNumInputs(inputs, tensorflow::DataTypeToEnum<Id>::value, fan_in, 0));
    // Both factors below 2^31: their product is a size.
    OP_REQUIRES(
        context, rows >= 0 && rows <= INT32_MAX,
        absl::InvalidArgumentError(absl::StrCat("`num_rows` must be in [0, 2^31). Received: ", rows)));
    OP_REQUIRES_OK(context, CheckFirstClass(first_class));
    tensorflow::Tensor* indices;
    OP_REQUIRES_OK(context, context->allocate_output(0, {rows, fan_in}, &indices));
    if (indices->NumElements() == 0) return;  // of 2^31 rows, say
    OpCall<typename Device::Call> call(context);
    OP_REQUIRES_OK(context, call.Status(Device(call.get())
                                            .Connections(rows, fan_in, inputs, key, first_class,
                                                         indices->flat<Id>().data())));
  }
};

template <typename Device, typename Id>
class FanInCandidatesOp : public GuardedOp {
 public:
  using GuardedOp::GuardedOp;

  void Run(tensorflow::OpKernelContext* context) override {
    int64_t inputs, first, rows, first_class, count;
    uint64_t key;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "num_inputs", &inputs));
    OP_REQUIRES_OK(context, ReadPair(context, 2, "rows", &first, &rows));
    OP_REQUIRES_OK(context, ReadScalar(context, 3, "first_class", &first_class));
    OP_REQUIRES_OK(context, ReadScalar(context, 4, "count", &count));
    OP_REQUIRES_OK(context, ReadKey(context, 5, &key));
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 0, tensorflow::DataTypeToEnum<Id>::value, "indices"));
    variables.Lock();
    const tensorflow::Tensor& indices = variables[0];
    OP_REQUIRES_OK(context, CheckMatrix(indices, "indices"));
    OP_REQUIRES_OK(context, CheckRows(first, rows, indices.dim_size(0)));
    OP_REQUIRES_OK(context, CheckFirstClass(first_class));
    OP_REQUIRES_OK(context, CheckNumInputs(inputs, indices.dtype(), indices.dim_size(1), count));
    tensorflow::Tensor* candidates;
    OP_REQUIRES_OK(context, context->allocate_output(0, {rows, count}, &candidates));
    OpCall<typename Device::Call> call(context);
    int64_t bad;
    OP_REQUIRES_OK(
        context, call.Status(Device(call.get())
                                 .Candidates(Data<Id>(indices), indices.dim_size(1), inputs, key, first_class,
                                             first, rows, count, candidates->flat<int32_t>().data(), &bad)));
    OP_REQUIRES_OK(context, BadRow(bad, inputs));
  }
};

template <typename Device, typename T>
class FanInKeyCountsOp : public GuardedOp {
 public:
  explicit FanInKeyCountsOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("digit", &digit_));
    OP_REQUIRES(context, digit_ < kFanInKeyDigits,
                absl::InvalidArgumentError(
                    absl::StrCat("`digit` must be below ", kFanInKeyDigits, ". Received: ", digit_)));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    int64_t prefix, first_class;
    uint64_t key;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "prefix", &prefix));
    OP_REQUIRES_OK(context, ReadKey(context, 2, &key));
    OP_REQUIRES_OK(context, ReadScalar(context, 3, "first_class", &first_class));
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 0, tensorflow::DataTypeToEnum<T>::value, "weights"));
    variables.Lock();
    const tensorflow::Tensor& weights = variables[0];
    OP_REQUIRES_OK(context, CheckMatrix(weights, "weights"));
    OP_REQUIRES_OK(context, CheckFirstClass(first_class));
    tensorflow::Tensor* counts;
    OP_REQUIRES_OK(context, context->allocate_output(0, {1 << kFanInDigitBits}, &counts));
    OpCall<typename Device::Call> call(context);
    OP_REQUIRES_OK(context,
                   call.Status(Device(call.get())
                                   .KeyCounts(Data<T>(weights), weights.dim_size(0), weights.dim_size(1), key,
                                              first_class, static_cast<uint64_t>(prefix), digit_,
                                              Data<int64_t>(counts))));
  }

 private:
  int digit_;
};

template <typename Device, typename T, typename Id>
class FanInRewireOp : public GuardedOp {
 public:
  explicit FanInRewireOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &slots_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    FanInRewiring<typename KernelType<T>::type, Id> r = {};
    const int at = 2 + slots_;
    OP_REQUIRES_OK(context, ReadScalar(context, at, "num_inputs", &r.inputs));
    OP_REQUIRES_OK(context, ReadPair(context, at + 1, "rows", &r.first_row, &r.rows));
    OP_REQUIRES_OK(context, ReadScalar(context, at + 2, "first_class", &r.first_class));
    OP_REQUIRES_OK(context, ReadScalar(context, at + 3, "count", &r.count));
    OP_REQUIRES_OK(context, ReadScalar(context, at + 4, "threshold", &r.threshold));
    OP_REQUIRES_OK(context, ReadKey(context, at + 5, &r.key));
    const tensorflow::Tensor &candidates = context->input(at + 6), &scores = context->input(at + 7);
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 0, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, false, FanInVariables::kAll,
                                           2, slots_));
    OpCall<typename Device::Call> call(context);
    OP_REQUIRES_OK(context, variables.Lock(&call));
    OP_REQUIRES_OK(context, variables.Check(-1, slots_));
    r.fan_in = variables.fan_in();
    OP_REQUIRES_OK(context, CheckRows(r.first_row, r.rows, variables.classes()));
    OP_REQUIRES_OK(context, CheckFirstClass(r.first_class));
    OP_REQUIRES_OK(context, CheckNumInputs(r.inputs, tensorflow::DataTypeToEnum<Id>::value, r.fan_in, 0));
    OP_REQUIRES(context, r.count >= -1 && r.count <= r.fan_in,
                absl::InvalidArgumentError(
                    absl::StrCat("`count` must be in [-1, ", r.fan_in, "]. Received: ", r.count)));
    OP_REQUIRES(context, candidates.dims() == 2 && candidates.dim_size(0) == r.rows,
                absl::InvalidArgumentError(absl::StrCat("`candidates` must have the shape [", r.rows,
                                                        ", count]. Received: shape ",
                                                        candidates.shape().DebugString())));
    OP_REQUIRES_OK(context, CheckShape(scores, "scores", candidates.shape()));
    tensorflow::Tensor* changes;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &changes));
    std::vector<float*> slots(slots_);
    for (int i = 0; i < slots_; ++i) slots[i] = Data<float>(variables.slot(i));
    r.weights = Data<T>(variables.weights());
    r.indices = Data<Id>(variables.indices());
    r.slots = slots.data(), r.num_slots = slots_;
    r.candidates = candidates.flat<int32_t>().data(), r.scores = Data<float>(scores);
    r.num_candidates = candidates.dim_size(1);
    int64_t bad;
    bool bad_candidate;
    OP_REQUIRES_OK(context,
                   call.Status(Device(call.get()).Rewire(r, Data<int64_t>(changes), &bad, &bad_candidate)));
    OP_REQUIRES_OK(context, BadRow(bad, r.inputs, bad_candidate ? "candidates" : "indices"));
  }

 private:
  int slots_;
};

template <typename Device, typename Id>
class FanInDegreesOp : public GuardedOp {
 public:
  using GuardedOp::GuardedOp;

  void Run(tensorflow::OpKernelContext* context) override {
    int64_t inputs;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "num_inputs", &inputs));
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 0, tensorflow::DataTypeToEnum<Id>::value, "indices"));
    variables.Lock();
    const tensorflow::Tensor& indices = variables[0];
    OP_REQUIRES_OK(context, CheckMatrix(indices, "indices"));
    OP_REQUIRES(
        context, inputs >= 0 && inputs <= INT32_MAX,
        absl::InvalidArgumentError(absl::StrCat("`num_inputs` must be in [0, 2^31). Received: ", inputs)));
    OP_REQUIRES(context, indices.dtype() != tensorflow::DT_UINT16 || inputs <= UINT16_MAX + 1,
                absl::InvalidArgumentError(absl::StrCat(
                    "`num_inputs` must be in [0, 2^16] where indices are uint16. Received: ", inputs)));
    tensorflow::Tensor* degrees;
    OP_REQUIRES_OK(context, context->allocate_output(0, {inputs}, &degrees));
    OpCall<typename Device::Call> call(context);
    int64_t bad;
    OP_REQUIRES_OK(
        context, call.Status(Device(call.get())
                                 .Degrees(Data<Id>(indices), indices.dim_size(0), indices.dim_size(1), inputs,
                                          Data<int64_t>(degrees), &bad)));
    OP_REQUIRES_OK(context, BadRow(bad, inputs));
  }
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_REGROW_OP_H_
