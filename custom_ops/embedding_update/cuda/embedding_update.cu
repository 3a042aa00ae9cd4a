// The kernels are those of row_update whose gradients are summed first: row_update_sums.cu.
#include "embedding_update/cuda/embedding_update_cuda.h"
#include "row_update/cuda/row_update_cuda.h"

namespace largeout {

template <typename T>
int EmbeddingUpdateCuda(const EmbeddingGradPlanCuda& plan, const T* grad, UpdateRule rule, T* table, int64_t dim,
                        float* const* slots, const float* hyper, void* scratch, GpuStream stream) {
  return SumAndStepCuda(plan, grad, /*round=*/true, rule, table, dim, slots, hyper, nullptr, scratch, stream);
}

template int EmbeddingUpdateCuda<float>(const EmbeddingGradPlanCuda&, const float*, UpdateRule, float*, int64_t,
                                        float* const*, const float*, void*, GpuStream);
template int EmbeddingUpdateCuda<bfloat16>(const EmbeddingGradPlanCuda&, const bfloat16*, UpdateRule, bfloat16*,
                                           int64_t, float* const*, const float*, void*, GpuStream);

}  // namespace largeout
