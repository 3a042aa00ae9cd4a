// The hot loops of embedding.cc over a range of outputs, one table for each instruction-set level. Internal.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_KERNELS_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_KERNELS_H_

#include "common/bfloat16.h"
#include "common/isa.h"
#include "embedding/embedding.h"

namespace largeout {

// D of embedding.h over ids[begin .. end). (Static: every level keeps its own copy.)
template <typename Id>
static inline float Denominator(const Bags<Id>& bags, Combiner combiner, int64_t rows, int64_t begin, int64_t end) {
  if (combiner == Combiner::kSum) return 1.f;
  float sum = 0.f;
  for (int64_t p = begin; p < end; ++p) {
    if (static_cast<uint64_t>(bags.ids[p]) >= static_cast<uint64_t>(rows)) continue;
    const float w = bags.weights != nullptr ? bags.weights[p] : 1.f;
    sum += combiner == Combiner::kMean ? w : w * w;
  }
  return combiner == Combiner::kMean ? sum : __builtin_sqrtf(sum);
}

template <typename T, typename Id>
struct LookupArgs {
  const T* table;
  int64_t rows, dim;
  int64_t stride;  // from row to row, in values
  Bags<Id> bags;
  Combiner combiner;
};

struct SumRowsArgs {
  const int32_t* source;  // the row of grad of each occurrence
  const float* factor;    // of each occurrence; null: 1
  const int64_t* starts;  // group g is occurrences starts[g] .. starts[g + 1]
  int64_t dim;
  int64_t first_column, last_column;  // the columns that this call computes
  int64_t most;                       // groups of more occurrences are left out
  int64_t known;                      // groups[.. known) come next, after those of a call
};

template <typename Id>
struct IdKernels {
  bool (*any_bad)(const Id* ids, int64_t n, int64_t rows);
};

// The sums of groups [begin, end) into out [end - begin, dim].
template <typename T>
using SumRows = void (*)(const SumRowsArgs& args, const T* grad, int64_t begin, int64_t end, T* out);

struct EmbeddingGradKernels {
  SumRows<float> of_float;
  SumRows<bfloat16> of_bfloat16;
};

template <typename T, typename Id>
struct LookupKernels {
  // Bags of one id without weights: rows are copied as they are. Both work on bags [begin, end).
  void (*copy)(const LookupArgs<T, Id>& args, int64_t begin, int64_t end, T* out);
  void (*combine)(const LookupArgs<T, Id>& args, int64_t begin, int64_t end, T* out);
  void (*weights_grad)(const LookupArgs<T, Id>& args, int64_t begin, int64_t end, const T* grad, float* weights_grad);
};

struct EmbeddingKernels {
  IdKernels<int32_t> id32;
  IdKernels<int64_t> id64;
  LookupKernels<float, int32_t> float_id32;
  LookupKernels<float, int64_t> float_id64;
  LookupKernels<bfloat16, int32_t> bfloat16_id32;
  LookupKernels<bfloat16, int64_t> bfloat16_id64;
};

LARGEOUT_DECLARE_LEVELS(EmbeddingKernels, kEmbeddingKernels)
LARGEOUT_DECLARE_LEVELS(EmbeddingGradKernels, kEmbeddingGradKernels)

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_KERNELS_H_
