#include "embedding/embedding.h"

#include <algorithm>

#include "embedding/embedding_kernels.h"
#include "embedding/embedding_tasks.h"

namespace largeout {
namespace {

const IdKernels<int32_t>& Pick(const EmbeddingKernels& k, const int32_t*) { return k.id32; }
const IdKernels<int64_t>& Pick(const EmbeddingKernels& k, const int64_t*) { return k.id64; }
const LookupKernels<float, int32_t>& Pick(const EmbeddingKernels& k, const float*, const int32_t*) {
  return k.float_id32;
}
const LookupKernels<float, int64_t>& Pick(const EmbeddingKernels& k, const float*, const int64_t*) {
  return k.float_id64;
}
const LookupKernels<bfloat16, int32_t>& Pick(const EmbeddingKernels& k, const bfloat16*, const int32_t*) {
  return k.bfloat16_id32;
}
const LookupKernels<bfloat16, int64_t>& Pick(const EmbeddingKernels& k, const bfloat16*, const int64_t*) {
  return k.bfloat16_id64;
}

}  // namespace

template <typename Id>
int64_t FirstBadId(const Id* ids, int64_t n, int64_t rows) {
  const auto& kernels = Pick(LARGEOUT_SELECT(kEmbeddingKernels), ids);
  constexpr int64_t kBlock = 4096;
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t end = std::min(n, block + kBlock);
    if (!kernels.any_bad(ids + block, end - block, rows)) continue;
    for (int64_t i = block; i < end; ++i) {
      if (static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(rows)) return i;
    }
  }
  return -1;
}

int64_t FirstBadSplit(const int64_t* row_splits, int64_t count, int64_t num_ids) {
  for (int64_t b = 0; b < count; ++b) {
    if (row_splits[b] < (b == 0 ? 0 : row_splits[b - 1]) || row_splits[b] > num_ids) return b;
    if (b == 0 && row_splits[0] != 0) return 0;
  }
  return count > 0 && row_splits[count - 1] != num_ids ? count - 1 : -1;
}

template <typename T, typename Id>
void EmbeddingLookup(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner, T* out,
                     Parallel* parallel) {
  EmbeddingLookup(table, rows, dim, dim, bags, combiner, out, parallel);
}

template <typename T, typename Id>
void EmbeddingLookup(const T* table, int64_t rows, int64_t dim, int64_t stride, const Bags<Id>& bags, Combiner combiner,
                     T* out, Parallel* parallel) {
  const auto& kernels = Pick(LARGEOUT_SELECT(kEmbeddingKernels), table, bags.ids);
  const LookupArgs<T, Id> args = {table, rows, dim, stride, bags, combiner};
  const bool copy = bags.row_splits == nullptr && bags.bag_size == 1 && bags.weights == nullptr;
  ForWeighted(
      bags.num_bags, [&bags](int64_t b) { return bags.begin(b); }, RowCost(dim * sizeof(T)), parallel,
      [&](int64_t first, int64_t last) { (copy ? kernels.copy : kernels.combine)(args, first, last, out); });
}

template <typename T, typename Id>
void EmbeddingWeightsGrad(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner, const T* grad,
                          float* weights_grad, Parallel* parallel) {
  const auto& kernels = Pick(LARGEOUT_SELECT(kEmbeddingKernels), table, bags.ids);
  const LookupArgs<T, Id> args = {table, rows, dim, dim, bags, combiner};
  ForWeighted(
      bags.num_bags, [&bags](int64_t b) { return bags.begin(b); }, RowCost(dim * sizeof(T)), parallel,
      [&](int64_t first, int64_t last) { kernels.weights_grad(args, first, last, grad, weights_grad); });
}

#define LARGEOUT_INSTANTIATE(T, Id)                                                                               \
  template void EmbeddingLookup<T, Id>(const T*, int64_t, int64_t, const Bags<Id>&, Combiner, T*, Parallel*);     \
  template void EmbeddingLookup<T, Id>(const T*, int64_t, int64_t, int64_t, const Bags<Id>&, Combiner, T*,        \
                                       Parallel*);                                                                \
  template void EmbeddingWeightsGrad<T, Id>(const T*, int64_t, int64_t, const Bags<Id>&, Combiner, const T*, float*, \
                                            Parallel*);
LARGEOUT_INSTANTIATE(float, int32_t)
LARGEOUT_INSTANTIATE(float, int64_t)
LARGEOUT_INSTANTIATE(bfloat16, int32_t)
LARGEOUT_INSTANTIATE(bfloat16, int64_t)
#undef LARGEOUT_INSTANTIATE
template int64_t FirstBadId<int32_t>(const int32_t*, int64_t, int64_t);
template int64_t FirstBadId<int64_t>(const int64_t*, int64_t, int64_t);

}  // namespace largeout
