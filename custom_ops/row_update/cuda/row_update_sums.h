// Helpers of the kernels of row_update, and the step of rows whose gradients are summed first, which
// embedding_update calls too.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_SUMS_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_SUMS_H_

#include "common/bfloat16.h"
#include "common/cuda/cuda.h"
#include "embedding/cuda/embedding_plan.h"
#include "row_update/row_update.h"

namespace largeout {

// The result of the check of indices, on the device.
struct IndexCheck {
  unsigned long long bad;  // the first position of an index outside the table; kNoBadIndex: none
  int increasing;          // 0: not strictly
};
constexpr unsigned long long kNoBadIndex = ~0ull;

// One step of each row of a plan by the sum of its gradients, rounded to T with `round`: the sums of
// EmbeddingGpu::GradRows. Nothing is changed where *check (null: there is none) has a bad index. Does not
// wait.
template <typename T, typename G>
int SumAndStepCuda(const EmbeddingGradPlanCuda& plan, const G* grad, bool round, UpdateRule rule, T* table,
                   int64_t dim, float* const* slots, const StepNumbers& numbers, const IndexCheck* check,
                   const GpuCall& call);

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_SUMS_H_
