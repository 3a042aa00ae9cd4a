// The rows that the gradient of a batch touches, on a GPU: also for the families that take a step by it (row_update,
// embedding_update).
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_PLAN_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_PLAN_H_

#include "common/cuda/cuda.h"
#include "common/cuda/group_cuda.h"
#include "embedding/embedding.h"

namespace largeout {

// Pointers into scratch memory, which must live until the plan has been used, as must the arrays of the Bags.
struct EmbeddingGradPlanCuda {
  // At most so many rows of the gradient, and occurrences of ids in range. On the device: *counts, exactly.
  int64_t most_unique = 0, most_valid = 0;
  const GroupCounts* counts = nullptr;
  int64_t bag_size = 1;             // where bag is null
  const int64_t* unique = nullptr;  // [counts->unique] ascending
  const int32_t* starts = nullptr;  // [counts->unique + 1] into order
  const int32_t* order = nullptr;   // positions of the ids, stably sorted by id
  const int32_t* group = nullptr;   // [counts->valid] the row of the gradient of order[i], counted from 1
  const int32_t* bag = nullptr;     // [num_ids] by position; null: position / bag_size
  const float* factor = nullptr;    // [num_ids] by position; null: all 1
};

// Radix sort of (id, position) over the bits that rows has, then groups. Does not wait.
template <typename Id>
int PlanEmbeddingGradCuda(const Bags<Id>& bags, Combiner combiner, int64_t rows, const GpuCall& call,
                          EmbeddingGradPlanCuda* plan);

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_PLAN_H_
