// The CUDA twin of exchange.h: the same numbers, ids and outputs in device memory.
//
//   int64_t bytes = PartitionWorkspaceCuda(placement, n);  // of device memory: workspace
//   PlanPartitionCuda(placement, ids, n, check_ids, workspace, stream, cuts, &plan);  // waits
//   WritePartitionCuda(plan, unique, local, inverse, stream);  // unique, local: [plan.num_unique]
#ifndef LARGEOUT_EXCHANGE_EXCHANGE_CUDA_H_
#define LARGEOUT_EXCHANGE_EXCHANGE_CUDA_H_

#include "common/cuda/cuda.h"
#include "exchange/exchange.h"

namespace largeout {

// Pointers into the workspace, which must live until WritePartitionCuda has run.
struct PartitionPlanCuda {
  int64_t num_unique = 0;
  // The first bad element of hot and of ids, and the first id whose position_of is bad; -1: none. Where there
  // is one, nothing else in here means anything.
  int64_t bad_hot = -1, bad_id = -1, bad_position = -1;

  int64_t n = 0, num_valid = 0, shards = 0;
  const int64_t *offsets = nullptr, *unique = nullptr;
  const int32_t *order = nullptr, *group = nullptr;
};

int64_t PartitionWorkspaceCuda(const PlacementView& placement, int64_t n);

// placement.offsets is in host memory and its other arrays in device memory; cuts [shards + 2] is in host
// memory. With check_ids ids outside [0, rows) are looked for; they are left out anyway. Waits for the stream
// once.
template <typename Id>
int PlanPartitionCuda(const PlacementView& placement, const Id* ids, int64_t n, bool check_ids,
                      void* workspace, GpuStream stream, int64_t* cuts, PartitionPlanCuda* plan);

// unique, local [plan.num_unique], inverse [n]. Does not wait.
int WritePartitionCuda(const PartitionPlanCuda& plan, int64_t* unique, int64_t* local, int32_t* inverse,
                       GpuStream stream);

}  // namespace largeout

#endif  // LARGEOUT_EXCHANGE_EXCHANGE_CUDA_H_
