// Checks that the registration of PartitionIds and its kernels share.
#ifndef LARGEOUT_EXCHANGE_EXCHANGE_SHAPES_OP_H_
#define LARGEOUT_EXCHANGE_EXCHANGE_SHAPES_OP_H_

#include <limits>

#include "common/op/tf_op.h"

namespace largeout {

// Vectors have devices + 1 and devices + 2 values: these must be sizes.
inline absl::Status CheckDevices(int64_t devices) {
  if (devices < std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`devices` must be less than 2^31 - 1. Received: devices=", devices));
}

}  // namespace largeout

#endif  // LARGEOUT_EXCHANGE_EXCHANGE_SHAPES_OP_H_
