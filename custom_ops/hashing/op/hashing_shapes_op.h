// Checks that the registration of the hashing ops and their kernels share.
#ifndef LARGEOUT_HASHING_HASHING_SHAPES_OP_H_
#define LARGEOUT_HASHING_HASHING_SHAPES_OP_H_

#include <cstdint>

#include "common/op/tf_op.h"

namespace largeout {

inline absl::Status CheckBins(int64_t num_bins, int64_t first, int64_t k) {
  if (k < 1) return absl::InvalidArgumentError("`seeds` must have at least one number. Received: none");
  if (first != 0 && first != 1)
    return absl::InvalidArgumentError(absl::StrCat("`first` must be 0 or 1. Received: first=", first));
  if (num_bins >= 2 && num_bins <= INT64_MAX / k) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`num_bins` must be at least 2, and the bins of all hashes fewer than 2^63. Received: num_bins=",
      num_bins, " and ", k, " hashes"));
}

}  // namespace largeout

#endif  // LARGEOUT_HASHING_HASHING_SHAPES_OP_H_
