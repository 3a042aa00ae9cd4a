// The CUDA twin of row_update.h: the same rules on device memory. One group of up to 32 threads updates a
// row; a row's gradients are summed in an order that depends on the indices alone, so every run gives the same
// bits.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_CUDA_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_CUDA_H_

#include "common/bfloat16.h"
#include "common/cuda/cuda.h"
#include "common/cuda/late_report.h"
#include "embedding/cuda/embedding_cuda.h"
#include "row_update/row_update.h"

namespace largeout {

// What kernels found out about indices, on the device.
struct IndexCheck {
  unsigned long long bad;  // the first position of an index outside the table; kNoBadIndex: none
  int increasing;          // 0: not strictly
};
constexpr unsigned long long kNoBadIndex = ~0ull;

// The rules of a finding in a LateReport: an index must lie in [0, limit); indices must increase.
enum LateIndexRule { kIndexInRange, kIndicesIncrease };

// As RowUpdate; all pointers but `slots` itself are device pointers, `hyper` included. Returns a CUDA error.
//
// Without `late` it waits for the stream after looking at the indices and before anything is written: an index outside the
// table must be known on the host. If *bad holds a position on return, nothing was changed. With `late` nothing waits: such
// indices change nothing either, and the report says so later.
//
// Indices that do not strictly increase cost a sort. With `late` the host does not know: all are sorted, unless
// `increasing`, the promise of the caller. Where it is broken nothing is changed.
template <typename T, typename G, typename Id>
int RowUpdateCuda(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots,
                  const Id* indices, int64_t n, const G* values, const float* hyper, Scratch* scratch,
                  GpuStream stream, BadIndex* bad, bool increasing = false, LateReport* late = nullptr);

// One step of each row of a plan by the sum of its gradients, rounded to T with `round`: sums as those of
// EmbeddingGradRowsCuda. Nothing is changed where *check (null: there is none) has a bad index. scratch:
// EmbeddingGradScratchCuda(plan, dim). Does not wait.
template <typename T, typename G>
int SumAndStepCuda(const EmbeddingGradPlanCuda& plan, const G* grad, bool round, UpdateRule rule, T* table, int64_t dim,
                   float* const* slots, const float* hyper, const IndexCheck* check, void* scratch, GpuStream stream);

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_CUDA_H_
