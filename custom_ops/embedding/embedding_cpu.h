// The embedding kernels on a CPU, as the ops and tests call them. EmbeddingGpu (cuda/embedding_gpu.h) has the
// same methods.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_CPU_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_CPU_H_

#include "common/scratch.h"
#include "embedding/embedding.h"

namespace largeout {

class EmbeddingCpu {
 public:
  using Call = CpuCall;
  explicit EmbeddingCpu(const CpuCall& call) : call_(call) {}

  // rows < 0: ids are not checked. Where something is bad, nothing else may be called.
  template <typename Id>
  int Check(const Bags<Id>& bags, int64_t rows, BadBags* bad) {
    *bad = {};
    if (bags.row_splits != nullptr) {
      bad->split = FirstBadSplit(bags.row_splits, bags.num_bags + 1, bags.num_ids);
      if (bad->split >= 0) {
        bad->value = bags.row_splits[bad->split];
        return 0;
      }
    }
    if (rows >= 0) bad->id = FirstBadId(bags.ids, bags.num_ids, rows);
    if (bad->id >= 0) bad->value = bags.ids[bad->id];
    return 0;
  }

  template <typename T, typename Id>
  int Lookup(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner, T* out) {
    EmbeddingLookup(table, rows, dim, bags, combiner, out, call_.parallel);
    return 0;
  }

  // The same where rows are `stride` values apart.
  template <typename T, typename Id>
  int Lookup(const T* table, int64_t rows, int64_t dim, int64_t stride, const Bags<Id>& bags, Combiner combiner,
             T* out) {
    EmbeddingLookup(table, rows, dim, stride, bags, combiner, out, call_.parallel);
    return 0;
  }

  // The gradient of a batch: plan, allocate num_unique() ids and rows, write them. The arrays of `bags` must
  // live until then.
  template <typename Id>
  int PlanGrad(const Bags<Id>& bags, Combiner combiner, int64_t rows) {
    PlanEmbeddingGrad(bags, combiner, rows, call_.parallel, &plan_);
    return 0;
  }
  int64_t num_unique() const { return plan_.num_unique; }
  template <typename T>
  int GradRows(const T* grad, int64_t dim, int64_t* unique_ids, T* rows_out) {
    EmbeddingGradRows(plan_, grad, dim, unique_ids, rows_out, call_.parallel);
    return 0;
  }

  template <typename T, typename Id>
  int WeightsGrad(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner,
                  const T* grad, float* weights_grad) {
    EmbeddingWeightsGrad(table, rows, dim, bags, combiner, grad, weights_grad, call_.parallel);
    return 0;
  }

 private:
  const CpuCall call_;
  EmbeddingGradPlan plan_;
};

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_CPU_H_
