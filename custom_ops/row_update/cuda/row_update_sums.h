// Helpers of the kernels of row_update, and steps that other families call too: of rows whose gradients are summed
// first (embedding_update), and of rows that are known to be right (tree_update).
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

// One step of each of rows [n], all different and in the table, by values [n, dim]; rows of -1 are left out. Does not
// wait.
template <typename T, typename G>
int StepRowsCuda(UpdateRule rule, T* table, int64_t dim, float* const* slots, const int64_t* rows, int64_t n,
                 const G* values, const StepNumbers& numbers, GpuStream stream);

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_SUMS_H_
