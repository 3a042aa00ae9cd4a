// The embedding kernels on a GPU: the methods of EmbeddingCpu (embedding_cpu.h).
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_GPU_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_GPU_H_

#include "embedding/cuda/embedding_cuda.h"

namespace largeout {

class EmbeddingGpu {
 public:
  using Call = GpuCall;
  explicit EmbeddingGpu(const GpuCall& call) : call_(call) {}

  // With the call's `late`: what an earlier call has found; what this one finds a later one tells. Else waits for the
  // verdict; with dense ids and rows < 0 there is nothing to check and nothing waits.
  template <typename Id>
  int Check(const Bags<Id>& bags, int64_t rows, BadBags* bad) {
    *bad = {};
    LateFinding found;
    if (call_.late != nullptr && call_.late->Take(&found)) {
      (found.rule == kIdInRange ? bad->id : bad->split) = found.position;
      bad->value = found.value, bad->late = true, bad->limit = found.limit;
      return 0;
    }
    int64_t* checks = call_.scratch->template Take<int64_t>(2);
    if (checks == nullptr) return kNoMemory;
    if (call_.late != nullptr) return CheckBagsLateCuda(bags, rows, checks, call_.stream, call_.late);
    LARGEOUT_RETURN_IF_ERROR(CheckBagsCuda(bags, rows, checks, call_.stream, bad));
    if (bad->split >= 0) {
      bad->id = -1;
      return CopyToHostCuda(bags.row_splits + bad->split, sizeof(bad->value), &bad->value, call_.stream);
    }
    if (bad->id < 0) return 0;
    Id id = 0;
    LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(bags.ids + bad->id, sizeof(id), &id, call_.stream));
    bad->value = id;
    return 0;
  }

  template <typename T, typename Id>
  int Lookup(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner, T* out) {
    return EmbeddingLookupCuda(table, rows, dim, bags, combiner, out, call_.stream);
  }

  // Waits for the stream: the shape of the gradient is one of the op's outputs.
  template <typename Id>
  int PlanGrad(const Bags<Id>& bags, Combiner combiner, int64_t rows) {
    void* workspace = call_.scratch->Allocate(EmbeddingGradWorkspaceCuda(bags, combiner, rows));
    if (workspace == nullptr) return kNoMemory;
    LARGEOUT_RETURN_IF_ERROR(PlanEmbeddingGradCuda(bags, combiner, rows, workspace, call_.stream, &plan_));
    return EmbeddingGradCountsCuda(call_.stream, &plan_);
  }
  int64_t num_unique() const { return plan_.most_unique; }
  template <typename T>
  int GradRows(const T* grad, int64_t dim, int64_t* unique_ids, T* rows_out) {
    void* sums = call_.scratch->Allocate(EmbeddingGradScratchCuda(plan_, dim));
    if (sums == nullptr) return kNoMemory;
    return EmbeddingGradRowsCuda(plan_, grad, dim, sums, unique_ids, rows_out, call_.stream);
  }

  template <typename T, typename Id>
  int WeightsGrad(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner,
                  const T* grad, float* weights_grad) {
    return EmbeddingWeightsGradCuda(table, rows, dim, bags, combiner, grad, weights_grad, call_.stream);
  }

 private:
  const GpuCall call_;
  EmbeddingGradPlanCuda plan_;
};

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_GPU_H_
