// Embedding: rows of a table, alone or combined over bags of ids, and both gradients. CPU and GPU compute the
// same (their order of summation differs for hot rows).
//
// The reference, for bag b with the ids i, weights w_i (1 where none are given) and rows x_i = table[id_i]:
//
//   out[b]     = sum of w_i x_i / D, or 0 where D = 0 or the bag is empty;
//                D = 1 (sum), sum of w_i (mean), sqrt(sum of w_i^2) (sqrtn)
//   d table[r] = sum over all i with id_i = r, in the order in which they occur, of w_i / D_b * grad[b]
//   d w_i      = grad[b] . x_i                             (sum)
//                grad[b] . (x_i - out[b]) / D              (mean)
//                grad[b] . (x_i - out[b] w_i / D) / D      (sqrtn)
//
// An id outside [0, rows) is skipped, in the sum and in D; its weight's gradient is 0. To get an error, call
// Check first. Sums are float32, also for bfloat16 tables. Nothing of the size of the table is read, written
// or allocated. Results are the same bits for every number of threads, and on every run of a GPU: no float
// atomics, every sum has an order that depends on the sizes alone.
//
//   Bags<int64_t> bags{ids, n, splits, /*bag_size=*/0, batch, /*weights=*/nullptr};
//   EmbeddingCpu device(call);                                // or EmbeddingGpu
//   device.Lookup(table, rows, dim, bags, Combiner::kMean, out);
//   device.PlanGrad(bags, Combiner::kMean, rows);             // device.num_unique() is known: allocate
//   device.GradRows(grad, dim, unique_ids, rows_out);
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_H_

#include <cstdint>
#include <type_traits>
#include <vector>

#include "common/host_device.h"
#include "common/scratch.h"
#include "common/sort.h"

namespace largeout {

// A lookup without combiner is a kSum over bags of one id.
enum class Combiner { kSum, kMean, kSqrtn };

// Ids in bags. Bag b is ids[begin(b) .. begin(b + 1)). Owns nothing.
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

// The rows that the gradient of a batch touches. Made once a batch, used while the arrays of its Bags live.
struct EmbeddingGradPlan {
  Groups groups;              // the bags of each id; groups from num_unique on are out of range
  int64_t num_unique = 0;     // rows of the gradient
  std::vector<float> factor;  // [groups.order.size()], w_i / D of an id in its bag; empty: all 1
};

template <typename Id>
void PlanEmbeddingGrad(const Bags<Id>& bags, Combiner combiner, int64_t rows, Parallel* parallel, EmbeddingGradPlan* plan);

// Takes the sums of rows that EmbeddingGradBlocks makes, on any thread.
template <typename T>
class GradBlocks {
 public:
  virtual ~GradBlocks() = default;
  // sums [n, dim] are those of Embedding::GradRows for rows ids[0 .. n), which ascend; they are overwritten
  // afterwards. ids[n .. n + next) come next on this thread.
  virtual void Take(const int64_t* ids, int64_t n, int64_t next, const T* sums) = 0;
};

// GradRows for a caller that needs each row just once: a block of rows at a time, small enough for a core's
// own caches, instead of [num_unique, dim] in memory. Every row is taken once.
template <typename T>
void EmbeddingGradBlocks(const EmbeddingGradPlan& plan, const T* grad, int64_t dim, GradBlocks<T>* blocks,
                         Parallel* parallel);

struct EmbeddingGradPlanCuda;  // cuda/embedding_plan.h

// One call of an op. C: CpuCall (embedding*.cc) or GpuCall (cuda/embedding*.cu). All arrays are in the memory
// of the device; T is float or bfloat16. Methods return 0 or an error (common/scratch.h). Apart from Check,
// none reads or writes out of bounds on a GPU where ids or row_splits are bad: such ids are dropped, and bags
// are cut short.
template <typename C>
class Embedding {
 public:
  using Call = C;
  explicit Embedding(const Call& call) : call_(call) {}

  // rows < 0: ids are not checked. A GPU waits for the stream, unless there is nothing to check. With the
  // call's `late` it does not wait: *bad is what an earlier call has found. Where something is bad, no other
  // method may be called.
  template <typename Id>
  int Check(const Bags<Id>& bags, int64_t rows, BadBags* bad);

  // table [rows, dim], out [num_bags, dim]. Threads share bags by the number of their ids; one bag is never
  // split.
  template <typename T, typename Id>
  int Lookup(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner, T* out);

  // CPU only. The same where row r begins at table + r * stride, as in records.
  template <typename T, typename Id>
  int Lookup(const T* table, int64_t rows, int64_t dim, int64_t stride, const Bags<Id>& bags,
             Combiner combiner, T* out);

  // The gradient of a batch: PlanGrad (a GPU waits for the stream: the number of rows is a shape), allocate
  // num_unique() ids and rows, GradRows: grad [num_bags, dim] -> unique_ids [num_unique] ascending, rows_out
  // [num_unique, dim]. The arrays of `bags` must live until then. Threads share the occurrences evenly; a row
  // that occurs very often is split by columns.
  template <typename Id>
  int PlanGrad(const Bags<Id>& bags, Combiner combiner, int64_t rows);
  int64_t num_unique() const;
  template <typename T>
  int GradRows(const T* grad, int64_t dim, int64_t* unique_ids, T* rows_out);

  // The same sums as an array of all rows, for a table that is a tensor of about as many rows as ids: rows_out
  // [rows, dim], zeros where no id is. A GPU does not wait: all shapes are known.
  template <typename T, typename Id>
  int GradOfAllRows(const Bags<Id>& bags, Combiner combiner, int64_t rows, const T* grad, int64_t dim, T* rows_out);

  // grad [num_bags, dim] -> weights_grad [num_ids]. bags.weights may be null (the gradient at weights of 1).
  template <typename T, typename Id>
  int WeightsGrad(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner,
                  const T* grad, float* weights_grad);

 protected:
  const Call call_;

 private:
  std::conditional_t<std::is_same_v<C, CpuCall>, EmbeddingGradPlan, EmbeddingGradPlanCuda> plan_;
};

using EmbeddingCpu = Embedding<CpuCall>;
using EmbeddingGpu = Embedding<GpuCall>;

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_H_
