// Embedding: rows of a table, alone or combined over bags of ids, and both gradients. The contract of the CPU kernels;
// embedding_cuda.h declares their CUDA twins, which compute the same (their order of summation differs for hot rows).
//
// The reference, for bag b with the ids i, weights w_i (1 where none are given) and rows x_i = table[id_i]:
//
//   out[b] = sum w_i x_i / D,   D = 1 (sum), sum w_i (mean), sqrt(sum w_i^2) (sqrtn);   0 where D = 0 or the bag is empty
//   d table[r] = sum over the i with id_i = r, in the order in which they occur, of  w_i / D_b * grad[b]
//   d w_i = grad[b] . x_i (sum), (grad[b] . (x_i - out[b])) / D (mean), (grad[b] . (x_i - out[b] w_i / D)) / D (sqrtn)
//
// An id outside [0, rows) takes part in nothing: neither in the sum nor in D; its weight's gradient is 0. Who wants an
// error instead asks FirstBadId first. Sums are float32, also for bfloat16 tables. Nothing of the size of the table is
// read, written or allocated, and results are the same bits for every number of threads.
//
//   Bags<int64_t> bags{ids, n, splits, /*bag_size=*/0, batch, /*weights=*/nullptr};
//   EmbeddingLookup(table, rows, dim, bags, Combiner::kMean, out, parallel);
//   EmbeddingGradPlan plan;
//   PlanEmbeddingGrad(bags, Combiner::kMean, rows, parallel, &plan);       // now plan.num_unique is known: allocate
//   EmbeddingGradRows(plan, grad, dim, unique_ids, rows_out, parallel);
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_H_

#include <cstdint>
#include <vector>

#include "common/host_device.h"
#include "common/parallel.h"
#include "common/sort.h"

namespace largeout {

// A lookup without combiner is a kSum over bags of one id.
enum class Combiner { kSum, kMean, kSqrtn };

// Which ids belong together. Bag b is ids[begin(b) .. begin(b + 1)). Owns nothing.
template <typename Id>
struct Bags {
  const Id* ids;              // [num_ids], num_ids < 2^31
  int64_t num_ids;
  const int64_t* row_splits;  // [num_bags + 1], from 0 to num_ids, never decreasing; null: all bags have bag_size ids
  int64_t bag_size;           // read where row_splits is null; num_ids == num_bags * bag_size
  int64_t num_bags;
  const float* weights;       // [num_ids], or null: all 1
  LARGEOUT_HOST_DEVICE int64_t begin(int64_t bag) const { return row_splits != nullptr ? row_splits[bag] : bag * bag_size; }
};

// The position of the first id outside [0, rows), or -1.
template <typename Id>
int64_t FirstBadId(const Id* ids, int64_t n, int64_t rows);

// The first b at which row_splits [count] breaks the rules of Bags (row_splits[0] = 0, none less than the one before,
// the last one num_ids), or -1.
int64_t FirstBadSplit(const int64_t* row_splits, int64_t count, int64_t num_ids);

// The first thing wrong with a batch: a row_split, else an id. Its position (-1: none) and its value.
struct BadBags {
  int64_t split = -1, id = -1;
  int64_t value = 0;
  // On a GPU that nobody waits for: it was in an earlier call, which had so many ids (rows, where the id is bad).
  bool late = false;
  int64_t limit = 0;
};

// table [rows, dim], out [num_bags, dim]; T is float or bfloat16. Bags are split over threads by the number of their
// ids; one bag is never split.
template <typename T, typename Id>
void EmbeddingLookup(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner, T* out,
                     Parallel* parallel);

// The same where row r begins at table + r * stride, as in records.
template <typename T, typename Id>
void EmbeddingLookup(const T* table, int64_t rows, int64_t dim, int64_t stride, const Bags<Id>& bags, Combiner combiner,
                     T* out, Parallel* parallel);

// What the gradient of a batch touches. Made once a batch, used while the arrays of its Bags live.
struct EmbeddingGradPlan {
  Groups groups;              // the bags of each id; groups from num_unique on are out of range
  int64_t num_unique = 0;     // rows of the gradient
  std::vector<float> factor;  // [groups.order.size()], w_i / D of an id in its bag; empty: all 1
};

template <typename Id>
void PlanEmbeddingGrad(const Bags<Id>& bags, Combiner combiner, int64_t rows, Parallel* parallel, EmbeddingGradPlan* plan);

// grad [num_bags, dim] -> unique_ids [num_unique] ascending, rows_out [num_unique, dim]. Threads share the occurrences
// evenly; a row that occurs very often is split by columns.
template <typename T>
void EmbeddingGradRows(const EmbeddingGradPlan& plan, const T* grad, int64_t dim, int64_t* unique_ids, T* rows_out,
                       Parallel* parallel);

// Takes the sums of rows that EmbeddingGradBlocks makes, on any thread.
template <typename T>
class GradBlocks {
 public:
  virtual ~GradBlocks() = default;
  // sums [n, dim] are those of EmbeddingGradRows for rows ids[0 .. n), which ascend; they are overwritten afterwards.
  // ids[n .. n + next) come next on this thread.
  virtual void Take(const int64_t* ids, int64_t n, int64_t next, const T* sums) = 0;
};

// EmbeddingGradRows for who needs each row just once: a block of rows at a time, small enough for a core's own caches,
// instead of [num_unique, dim] in memory. Every row is taken once.
template <typename T>
void EmbeddingGradBlocks(const EmbeddingGradPlan& plan, const T* grad, int64_t dim, GradBlocks<T>* blocks,
                         Parallel* parallel);

// grad [num_bags, dim] -> weights_grad [num_ids]. bags.weights may be null (the gradient at weights of 1).
template <typename T, typename Id>
void EmbeddingWeightsGrad(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner, const T* grad,
                          float* weights_grad, Parallel* parallel);

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_H_
