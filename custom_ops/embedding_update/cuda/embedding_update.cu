// The rule is applied where rows are summed, by the threads that hold the sums. The kernels are those of
// row_update whose gradients are summed first: row_update_sums.cu.
#include "embedding/cuda/embedding_plan.h"
#include "embedding_update/embedding_update.h"
#include "row_update/cuda/row_update_sums.h"

namespace largeout {

template <>
template <typename T, typename Id>
int EmbeddingUpdateGpu::Update(const Bags<Id>& bags, Combiner combiner, const T* grad, UpdateRule rule,
                               T* table, int64_t rows, int64_t dim, float* const* slots, const StepNumbers& numbers) {
  EmbeddingGradPlanCuda plan;
  LARGEOUT_RETURN_IF_ERROR(PlanEmbeddingGradCuda(bags, combiner, rows, call_, &plan));
  return SumAndStepCuda(plan, grad, /*round=*/true, rule, table, dim, slots, numbers, nullptr, call_);
}

#define LARGEOUT_INSTANTIATE(T, Id)                                                                   \
  template int EmbeddingUpdateGpu::Update<T, Id>(const Bags<Id>&, Combiner, const T*, UpdateRule, T*, \
                                                 int64_t, int64_t, float* const*, const StepNumbers&);
LARGEOUT_INSTANTIATE(float, int32_t)
LARGEOUT_INSTANTIATE(float, int64_t)
LARGEOUT_INSTANTIATE(bfloat16, int32_t)
LARGEOUT_INSTANTIATE(bfloat16, int64_t)
#undef LARGEOUT_INSTANTIATE

}  // namespace largeout
