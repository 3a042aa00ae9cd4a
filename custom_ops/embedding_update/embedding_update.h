// The gradient of an embedding lookup and the optimizer's step in one pass ("backward with fused optimizer" in FBGEMM).
// What EmbeddingGradRows (embedding.h) would write, RowUpdate (row_update.h) would read once: here the sum of a row stays
// in the cache (on a GPU in registers) and goes into row and slots at once.
//
//   EmbeddingGradPlan plan;
//   PlanEmbeddingGrad(bags, combiner, rows, parallel, &plan);
//   EmbeddingUpdate(plan, grad, UpdateRule::kAdagrad, table, dim, slots, hyper, parallel);
//
// Bounds of the speed, for u different rows among n ids: bytes = u x dim x (2 rows + 2 for each slot) + n x dim of `grad`,
// and u misses of the cache for the row and for each slot. The two passes write and read u x dim more.
#ifndef LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_H_
#define LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_H_

#include "embedding/embedding.h"
#include "row_update/row_update.h"

namespace largeout {

// table [rows, dim], slots as in row_update.h, grad [num_bags, dim]; T is float or bfloat16. The bits are those of
// EmbeddingGradRows, whose sums are rounded to T, followed by RowUpdate, for any number of threads.
template <typename T>
void EmbeddingUpdate(const EmbeddingGradPlan& plan, const T* grad, UpdateRule rule, T* table, int64_t dim,
                     float* const* slots, const float* hyper, Parallel* parallel);

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_H_
