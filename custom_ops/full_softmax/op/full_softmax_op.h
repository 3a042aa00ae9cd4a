// Checks and the words of errors of the kernels of full_softmax.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_OP_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_OP_H_

#include <string>

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

// What is wrong with the target at `position` (-1: nothing). Targets on a GPU are not read: null. late: those
// of an earlier call.
template <typename Id>
absl::Status BadTarget(const Id* targets, int64_t position, int64_t classes, bool late = false) {
  if (position < 0) return absl::OkStatus();
  const std::string value = targets == nullptr ? "another value" : absl::StrCat(targets[position]);
  return absl::InvalidArgumentError(
      absl::StrCat("`targets` must be in [0, ", classes, "), the classes, or -1 for none. Received: ", value,
                   " at position ", position,
                   late ? " of an earlier batch (a GPU's check is not waited for: "
                          "`late_errors`)"
                        : ""));
}

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_OP_H_
