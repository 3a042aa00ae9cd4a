// The CUDA twin of embedding_update.h: the rule is applied where rows are summed, by the threads that hold the sums, and
// how many rows there are stays on the device. The same bits on every run.
//
//   bytes = EmbeddingGradWorkspaceCuda(bags, combiner, rows);             // allocate them: workspace
//   PlanEmbeddingGradCuda(bags, combiner, rows, workspace, stream, &plan);
//   bytes = EmbeddingGradScratchCuda(plan, dim);                          // allocate them: scratch
//   EmbeddingUpdateCuda(plan, grad, rule, table, dim, slots, hyper, scratch, stream);
#ifndef LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_CUDA_H_
#define LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_CUDA_H_

#include "embedding/cuda/embedding_cuda.h"
#include "row_update/row_update.h"

namespace largeout {

// Does not wait. Sums are rounded to T, as EmbeddingGrad's are, and are those of EmbeddingGradRowsCuda. All pointers but
// `slots` itself are device pointers, `hyper` included.
template <typename T>
int EmbeddingUpdateCuda(const EmbeddingGradPlanCuda& plan, const T* grad, UpdateRule rule, T* table, int64_t dim,
                        float* const* slots, const float* hyper, void* scratch, GpuStream stream);

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_CUDA_H_
