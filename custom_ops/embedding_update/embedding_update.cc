#include "embedding_update/embedding_update.h"

#include "common/bfloat16.h"

namespace largeout {
namespace {

// Sums go straight into the step.
template <typename T>
class StepBlocks final : public GradBlocks<T> {
 public:
  explicit StepBlocks(const RowUpdater<T, T>& updater) : updater_(updater) {}
  void Take(const int64_t* ids, int64_t n, int64_t next, const T* sums) override {
    updater_.Update(ids, n, next, sums);
  }

 private:
  const RowUpdater<T, T>& updater_;
};

}  // namespace

template <>
template <typename T, typename Id>
int EmbeddingUpdateCpu::Update(const Bags<Id>& bags, Combiner combiner, const T* grad, UpdateRule rule,
                               T* table, int64_t rows, int64_t dim, float* const* slots,
                               const StepNumbers& numbers) {
  EmbeddingGradPlan plan;
  PlanEmbeddingGrad(bags, combiner, rows, call_.parallel, &plan);
  if (plan.num_unique == 0 || dim == 0) return 0;
  const RowUpdater<T, T> updater(rule, table, dim, slots, numbers);
  StepBlocks<T> blocks(updater);
  EmbeddingGradBlocks(plan, grad, dim, &blocks, call_.parallel);
  return 0;
}

#define LARGEOUT_INSTANTIATE(T, Id)                                                                   \
  template int EmbeddingUpdateCpu::Update<T, Id>(const Bags<Id>&, Combiner, const T*, UpdateRule, T*, \
                                                 int64_t, int64_t, float* const*, const StepNumbers&);
LARGEOUT_INSTANTIATE(float, int32_t)
LARGEOUT_INSTANTIATE(float, int64_t)
LARGEOUT_INSTANTIATE(bfloat16, int32_t)
LARGEOUT_INSTANTIATE(bfloat16, int64_t)
#undef LARGEOUT_INSTANTIATE

}  // namespace largeout
