// Checks that the registration of the vocabulary's ops and their kernels share.
#ifndef LARGEOUT_VOCABULARY_VOCABULARY_SHAPES_OP_H_
#define LARGEOUT_VOCABULARY_VOCABULARY_SHAPES_OP_H_

#include "common/op/tf_op.h"
#include "vocabulary/vocabulary.h"

namespace largeout {

inline absl::Status CheckAdmitAfter(int64_t admit_after) {
  if (admit_after >= 1 && admit_after <= kMostAdmitAfter) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`admit_after` must lie in [1, ", kMostAdmitAfter,
                                                 "]. Received: admit_after=", admit_after));
}

inline absl::Status CheckCapacity(int64_t capacity) {
  if (capacity > 0 && capacity % kSlotsPerBucket == 0 && capacity / kSlotsPerBucket <= kMostBuckets)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`keys` must have the shape [capacity], where capacity is a multiple of ", kSlotsPerBucket,
                   ", from ", kSlotsPerBucket, " to 2^36. Received: shape [", capacity, "]"));
}

inline absl::Status CheckBlocks(int64_t blocks, int64_t admit_after) {
  const int64_t least = admit_after > 1 ? 1 : 0;
  if (blocks >= least && blocks <= kMostBuckets) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`sketch` must have from ", least,
                                                 " to 2^32 blocks if `admit_after` is ", admit_after,
                                                 ". Received: shape [", blocks, ",", kCountersPerBlock, "]"));
}

}  // namespace largeout

#endif  // LARGEOUT_VOCABULARY_VOCABULARY_SHAPES_OP_H_
