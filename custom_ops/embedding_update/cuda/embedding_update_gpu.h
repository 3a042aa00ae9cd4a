// EmbeddingUpdate on a GPU: the methods of EmbeddingUpdateCpu (embedding_update_cpu.h).
#ifndef LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_GPU_H_
#define LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_GPU_H_

#include "embedding/cuda/embedding_gpu.h"
#include "embedding_update/cuda/embedding_update_cuda.h"

namespace largeout {

class EmbeddingUpdateGpu : public EmbeddingGpu {
 public:
  explicit EmbeddingUpdateGpu(const GpuCall& call) : EmbeddingGpu(call), call_(call) {}

  // Does not wait.
  template <typename T, typename Id>
  int Update(const Bags<Id>& bags, Combiner combiner, const T* grad, UpdateRule rule, T* table, int64_t rows,
             int64_t dim, float* const* slots, const float* hyper) {
    void* workspace = call_.scratch->Allocate(EmbeddingGradWorkspaceCuda(bags, combiner, rows));
    if (workspace == nullptr) return kNoMemory;
    EmbeddingGradPlanCuda plan;
    LARGEOUT_RETURN_IF_ERROR(PlanEmbeddingGradCuda(bags, combiner, rows, workspace, call_.stream, &plan));
    void* scratch = call_.scratch->Allocate(EmbeddingGradScratchCuda(plan, dim));
    if (scratch == nullptr) return kNoMemory;
    return EmbeddingUpdateCuda(plan, grad, rule, table, dim, slots, hyper, scratch, call_.stream);
  }

 private:
  const GpuCall call_;
};

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_GPU_H_
