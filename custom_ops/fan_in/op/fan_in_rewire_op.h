// Checks that the CPU and GPU kernels of connections, pruning and regrowth share. Their small inputs are on
// the host.
#ifndef LARGEOUT_FAN_IN_FAN_IN_REWIRE_OP_H_
#define LARGEOUT_FAN_IN_FAN_IN_REWIRE_OP_H_

#include "fan_in/op/fan_in_op.h"
#include "fan_in/fan_in_rewire.h"

namespace largeout {

inline absl::Status ReadScalar(tensorflow::OpKernelContext* context, int at, const char* name,
                               int64_t* value) {
  TF_RETURN_IF_ERROR(CheckShape(context->input(at), name, {}));
  *value = context->input(at).scalar<int64_t>()();
  return absl::OkStatus();
}

inline absl::Status ReadPair(tensorflow::OpKernelContext* context, int at, const char* name, int64_t* first,
                             int64_t* second) {
  TF_RETURN_IF_ERROR(CheckShape(context->input(at), name, {2}));
  *first = context->input(at).vec<int64_t>()(0);
  *second = context->input(at).vec<int64_t>()(1);
  return absl::OkStatus();
}

inline absl::Status ReadKey(tensorflow::OpKernelContext* context, int at, uint64_t* key) {
  int64_t seed, step;
  TF_RETURN_IF_ERROR(ReadPair(context, at, "seed", &seed, &step));
  *key = RandomKey(seed, step);
  return absl::OkStatus();
}

// `taken` connections a class and `more` new ones need that many inputs, and inputs must fit the type of
// indices.
inline absl::Status CheckNumInputs(int64_t num_inputs, tensorflow::DataType dtype, int64_t taken,
                                   int64_t more) {
  const int64_t most = dtype == tensorflow::DT_UINT16 ? int64_t{UINT16_MAX} + 1 : INT32_MAX;
  if (num_inputs >= 0 && num_inputs <= most && taken >= 0 && more >= 0 && more <= num_inputs - taken)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`num_inputs` must be at least the connections of a class, ", taken,
                   more == 0 ? "" : absl::StrCat(" and ", more), ", and at most ", most,
                   " for indices of type ", tensorflow::DataTypeString(dtype), ". Received: ", num_inputs));
}

// Of row 0. Classes beyond it are counted from it, so that the sum must be a number.
inline absl::Status CheckFirstClass(int64_t first_class) {
  if (first_class >= 0 && first_class <= int64_t{1} << 62) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`first_class` must be in [0, 2^62]. Received: ", first_class));
}

inline absl::Status CheckRows(int64_t first, int64_t rows, int64_t classes) {
  if (first >= 0 && rows >= 0 && rows <= classes - first) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`first_row` and `num_rows` must name rows of the variable, which has ", classes,
                   ". Received: ", rows, " rows from row ", first));
}

inline absl::Status CheckMatrix(const tensorflow::Tensor& variable, const char* name) {
  if (variable.dims() == 2 && variable.dim_size(0) <= INT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`", name, "` must have the shape [classes, fan_in], less than 2^31 classes. Received: shape ",
      variable.shape().DebugString()));
}

inline absl::Status BadRow(int64_t bad, int64_t num_inputs, const char* name = "indices") {
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must be in [0, ", num_inputs,
                                                 "), `num_inputs`. ", "Received: another value in row ", bad,
                                                 "; nothing was changed"));
}

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_REWIRE_OP_H_
