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

template <>
template <typename Id>
int EmbeddingCpu::Check(const Bags<Id>& bags, int64_t rows, BadBags* bad) {
  *bad = {};
  if (bags.row_splits != nullptr)
    bad->split = FirstBadSplit(bags.row_splits, bags.num_bags + 1, bags.num_ids);
  if (bad->split >= 0) {
    bad->value = bags.row_splits[bad->split];
    return 0;
  }
  if (rows >= 0) bad->id = FirstBadId(bags.ids, bags.num_ids, rows);
  if (bad->id >= 0) bad->value = bags.ids[bad->id];
  return 0;
}

template <>
template <typename T, typename Id>
int EmbeddingCpu::Lookup(const T* table, int64_t rows, int64_t dim, int64_t stride, const Bags<Id>& bags,
                         Combiner combiner, T* out) {
  const auto& kernels = Pick(LARGEOUT_SELECT(kEmbeddingKernels), table, bags.ids);
  const LookupArgs<T, Id> args = {table, rows, dim, stride, bags, combiner};
  const bool copy = bags.row_splits == nullptr && bags.bag_size == 1 && bags.weights == nullptr;
  ForWeighted(
      bags.num_bags, [&bags](int64_t b) { return bags.begin(b); }, RowCost(dim * sizeof(T)), call_.parallel,
      [&](int64_t first, int64_t last) { (copy ? kernels.copy : kernels.combine)(args, first, last, out); });
  return 0;
}

template <>
template <typename T, typename Id>
int EmbeddingCpu::Lookup(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner,
                         T* out) {
  return Lookup(table, rows, dim, dim, bags, combiner, out);
}

template <>
template <typename T, typename Id>
int EmbeddingCpu::WeightsGrad(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags,
                              Combiner combiner, const T* grad, float* weights_grad) {
  const auto& kernels = Pick(LARGEOUT_SELECT(kEmbeddingKernels), table, bags.ids);
  const LookupArgs<T, Id> args = {table, rows, dim, dim, bags, combiner};
  ForWeighted(
      bags.num_bags, [&bags](int64_t b) { return bags.begin(b); }, RowCost(dim * sizeof(T)), call_.parallel,
      [&](int64_t first, int64_t last) { kernels.weights_grad(args, first, last, grad, weights_grad); });
  return 0;
}

#define LARGEOUT_INSTANTIATE(T, Id)                                                                        \
  template int EmbeddingCpu::Lookup<T, Id>(const T*, int64_t, int64_t, const Bags<Id>&, Combiner, T*);     \
  template int EmbeddingCpu::Lookup<T, Id>(const T*, int64_t, int64_t, int64_t, const Bags<Id>&, Combiner, \
                                           T*);                                                            \
  template int EmbeddingCpu::WeightsGrad<T, Id>(const T*, int64_t, int64_t, const Bags<Id>&, Combiner,     \
                                                const T*, float*);
LARGEOUT_INSTANTIATE(float, int32_t)
LARGEOUT_INSTANTIATE(float, int64_t)
LARGEOUT_INSTANTIATE(bfloat16, int32_t)
LARGEOUT_INSTANTIATE(bfloat16, int64_t)
#undef LARGEOUT_INSTANTIATE
template int EmbeddingCpu::Check<int32_t>(const Bags<int32_t>&, int64_t, BadBags*);
template int EmbeddingCpu::Check<int64_t>(const Bags<int64_t>&, int64_t, BadBags*);
template int64_t FirstBadId<int32_t>(const int32_t*, int64_t, int64_t);
template int64_t FirstBadId<int64_t>(const int64_t*, int64_t, int64_t);

}  // namespace largeout
