// The device's side of late_report.h.
#ifndef LARGEOUT_COMMON_LATE_REPORT_CUH_
#define LARGEOUT_COMMON_LATE_REPORT_CUH_

#include "common/cuda/cuda.h"
#include "common/cuda/late_report.h"

namespace largeout {

// By one thread of a stream at a time. A finding that the host has not taken yet stays.
__device__ __forceinline__ void Post(LateFinding* slot, int64_t rule, int64_t position, int64_t value, int64_t limit) {
  if (LoadRelaxed(&slot->posted) != 0) return;
  slot->rule = rule, slot->position = position, slot->value = value, slot->limit = limit;
  __threadfence_system();
  StoreRelaxed(&slot->posted, int64_t{1});
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_LATE_REPORT_CUH_
