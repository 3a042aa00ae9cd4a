// The CUDA twin of embedding.h: the same results up to float32 rounding, all arrays in device memory, and the same bits
// on every run: no float atomics, every sum has an order that depends on the sizes alone. Rows are read and written in
// 16-byte pieces where dim allows (a multiple of 4 floats or 8 bfloat16) and the arrays are aligned to 16 bytes.
//
//   BadBags bad;
//   CheckBagsCuda(bags, rows, checks, stream, &bad);                     // waits for the stream
//   EmbeddingLookupCuda(table, rows, dim, bags, combiner, out, stream);
//
//   bytes = EmbeddingGradWorkspaceCuda(bags, combiner, rows);            // allocate them: workspace
//   PlanEmbeddingGradCuda(bags, combiner, rows, workspace, stream, &plan);
//   EmbeddingGradCountsCuda(stream, &plan);                              // waits: plan.most_unique is a shape now
//   bytes = EmbeddingGradScratchCuda(plan, dim);                         // allocate them, and the outputs
//   EmbeddingGradRowsCuda(plan, grad, dim, scratch, unique_ids, rows_out, stream);
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_CUDA_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_CUDA_H_

#include "common/cuda/cuda.h"
#include "common/cuda/group_cuda.h"
#include "common/cuda/late_report.h"
#include "embedding/embedding.h"

namespace largeout {

// The positions of *bad, not its value. rows < 0: ids are not checked. checks: 2 int64 of device memory. Waits for the stream: an error has to reach the host.
template <typename Id>
int CheckBagsCuda(const Bags<Id>& bags, int64_t rows, int64_t* checks, GpuStream stream, BadBags* bad);

// The same for who does not wait: what is wrong is posted, with one of these rules.
enum LateBagRule { kIdInRange, kSplitsInOrder };
template <typename Id>
int CheckBagsLateCuda(const Bags<Id>& bags, int64_t rows, int64_t* checks, GpuStream stream, LateReport* late);

// None of the following reads or writes out of bounds where ids or row_splits are bad: such ids are dropped, and bags are
// cut short.

// Does not wait. A team of up to 32 lanes a bag, 8 rows in flight.
template <typename T, typename Id>
int EmbeddingLookupCuda(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner, T* out,
                        GpuStream stream);

// Pointers into the workspace, which must live until EmbeddingGradRowsCuda has run, as must the arrays of the Bags.
struct EmbeddingGradPlanCuda {
  // At most so many rows of the gradient, and occurrences of ids in range. On the device: *counts, exactly.
  int64_t most_unique = 0, most_valid = 0;
  const GroupCounts* counts = nullptr;
  int64_t bag_size = 1;                   // where bag is null
  const int64_t* unique = nullptr;        // [counts->unique] ascending
  const int32_t* starts = nullptr;        // [counts->unique + 1] into order
  const int32_t* order = nullptr;         // positions of the ids, stably sorted by id
  const int32_t* bag = nullptr;           // [num_ids] by position; null: position / bag_size
  const float* factor = nullptr;          // [num_ids] by position; null: all 1
};

template <typename Id>
int64_t EmbeddingGradWorkspaceCuda(const Bags<Id>& bags, Combiner combiner, int64_t rows);

// Radix sort of (id, position) over the bits that rows has, then groups. Does not wait.
template <typename Id>
int PlanEmbeddingGradCuda(const Bags<Id>& bags, Combiner combiner, int64_t rows, void* workspace, GpuStream stream,
                          EmbeddingGradPlanCuda* plan);

// Waits for the stream: most_unique and most_valid are exact then, as where the gradient's shape is one of an output.
int EmbeddingGradCountsCuda(GpuStream stream, EmbeddingGradPlanCuda* plan);

// Scratch for rows that occur more than 128 times: they are cut into pieces, a thread block each, whose sums are added in
// order. The others take a team of up to 32 lanes each and are summed in the order of their occurrences.
int64_t EmbeddingGradScratchCuda(const EmbeddingGradPlanCuda& plan, int64_t dim);

// Does not wait. unique_ids [most_unique] may be null; rows_out [most_unique, dim]. Out: T, or float, so that sums of
// bfloat16 are not rounded.
template <typename T, typename Out>
int EmbeddingGradRowsCuda(const EmbeddingGradPlanCuda& plan, const T* grad, int64_t dim, void* scratch,
                          int64_t* unique_ids, Out* rows_out, GpuStream stream);

// Does not wait. A warp a bag.
template <typename T, typename Id>
int EmbeddingWeightsGradCuda(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner,
                             const T* grad, float* weights_grad, GpuStream stream);

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_CUDA_H_
