// EmbeddingUpdate on a CPU, as its op and its tests call it: what EmbeddingCpu can, and the step.
// EmbeddingUpdateGpu (cuda/embedding_update_gpu.h) has the same methods.
#ifndef LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_CPU_H_
#define LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_CPU_H_

#include "embedding/embedding_cpu.h"
#include "embedding_update/embedding_update.h"

namespace largeout {

class EmbeddingUpdateCpu : public EmbeddingCpu {
 public:
  explicit EmbeddingUpdateCpu(const CpuCall& call) : EmbeddingCpu(call), parallel_(call.parallel) {}

  // `bags` were checked. All pointers but `slots` itself are to memory of the device, `hyper` included.
  template <typename T, typename Id>
  int Update(const Bags<Id>& bags, Combiner combiner, const T* grad, UpdateRule rule, T* table, int64_t rows,
             int64_t dim, float* const* slots, const float* hyper) {
    EmbeddingGradPlan plan;
    PlanEmbeddingGrad(bags, combiner, rows, parallel_, &plan);
    EmbeddingUpdate(plan, grad, rule, table, dim, slots, hyper, parallel_);
    return 0;
  }

 private:
  Parallel* const parallel_;
};

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_CPU_H_
