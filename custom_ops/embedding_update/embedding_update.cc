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

template <typename T>
void EmbeddingUpdate(const EmbeddingGradPlan& plan, const T* grad, UpdateRule rule, T* table, int64_t dim,
                     float* const* slots, const float* hyper, Parallel* parallel) {
  if (plan.num_unique == 0 || dim == 0) return;
  const RowUpdater<T, T> updater(rule, table, dim, slots, hyper);
  StepBlocks<T> blocks(updater);
  EmbeddingGradBlocks(plan, grad, dim, &blocks, parallel);
}

template void EmbeddingUpdate<float>(const EmbeddingGradPlan&, const float*, UpdateRule, float*, int64_t,
                                     float* const*, const float*, Parallel*);
template void EmbeddingUpdate<bfloat16>(const EmbeddingGradPlan&, const bfloat16*, UpdateRule, bfloat16*, int64_t,
                                        float* const*, const float*, Parallel*);

}  // namespace largeout
