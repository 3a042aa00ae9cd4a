// Checks and the words of errors of the kernels of full_softmax.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_OP_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_OP_H_

#include "common/op/table_op.h"
#include "full_softmax/full_softmax.h"

namespace largeout {

// T is TensorFlow's type.
template <typename T>
SoftmaxRows<typename KernelType<T>::type> SoftmaxRowsOf(const TableAndBias& variables) {
  const tensorflow::Tensor *bias = variables.bias(), &table = variables.table();
  return {Data<T>(table), bias != nullptr ? Data<float>(*bias) : nullptr, table.dim_size(0),
          table.dim_size(1)};
}

// late: the target is of an earlier call.
inline absl::Status TargetStatus(const BadTarget& bad, int64_t classes, bool late) {
  if (!bad.found()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`targets` must be in [0, ", classes,
                   "), the classes, or -1 for none. Received: ", bad.value, " at position ", bad.position,
                   late ? " of an earlier batch (a GPU's check is not waited for: "
                          "`late_errors`)"
                        : ""));
}

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_OP_H_
