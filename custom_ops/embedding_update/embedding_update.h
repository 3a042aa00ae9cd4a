// The gradient of an embedding lookup and the optimizer's step in one pass ("backward with fused optimizer"
// in FBGEMM). What Embedding::GradRows (embedding.h) would write, RowUpdate (row_update.h) would read once:
// here the sum of a row stays in the cache (on a GPU in registers) and goes into row and slots at once. How
// many rows there are stays on the device.
//
//   EmbeddingUpdateCpu device(call);                          // or EmbeddingUpdateGpu
//   device.Update(bags, combiner, grad, UpdateRule::kAdagrad, table, rows, dim, slots, hyper);
//
// Bounds of the speed, for u different rows among n ids: bytes = u x dim x (2 rows + 2 for each slot) + n x
// dim of `grad`, and u misses of the cache for the row and for each slot. The two passes write and read u x
// dim more.
#ifndef LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_H_
#define LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_H_

#include "embedding/embedding.h"
#include "row_update/row_update.h"

namespace largeout {

// C: CpuCall (embedding_update.cc) or GpuCall (cuda/embedding_update.cu).
template <typename C>
class EmbeddingUpdate : public Embedding<C> {
 public:
  using Embedding<C>::Embedding;

  // table [rows, dim], slots as in row_update.h, grad [num_bags, dim]; T is float or bfloat16. All pointers
  // but `slots` itself are to memory of the device, those in `numbers` included. `bags` were checked. The
  // bits are those of GradRows, whose sums are rounded to T, followed by RowUpdate, for any number of
  // threads. Does not wait.
  template <typename T, typename Id>
  int Update(const Bags<Id>& bags, Combiner combiner, const T* grad, UpdateRule rule, T* table, int64_t rows,
             int64_t dim, float* const* slots, const StepNumbers& numbers);
};

using EmbeddingUpdateCpu = EmbeddingUpdate<CpuCall>;
using EmbeddingUpdateGpu = EmbeddingUpdate<GpuCall>;

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_H_
