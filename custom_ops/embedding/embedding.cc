#include "embedding/embedding.h"

#include <algorithm>
#include <limits>

#include "embedding/embedding_kernels.h"

namespace largeout {
namespace {

const IdKernels<int32_t>& Pick(const EmbeddingKernels& k, const int32_t*) { return k.id32; }
const IdKernels<int64_t>& Pick(const EmbeddingKernels& k, const int64_t*) { return k.id64; }
SumRows<float> Pick(const EmbeddingGradKernels& k, const float*) { return k.of_float; }
SumRows<bfloat16> Pick(const EmbeddingGradKernels& k, const bfloat16*) { return k.of_bfloat16; }
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

// Splits things of uneven weight: item i stands for the units [start(i) + i, start(i + 1) + i + 1), its weight and one
// more, and belongs to the task that holds its first unit. Empty items are kept, and no task gets much more than its share.
template <typename Start, typename Body>
void ForWeighted(int64_t items, const Start& start, int64_t cost, Parallel* parallel, const Body& body) {
  if (items == 0) return;
  const auto first_from = [&](int64_t unit) {
    int64_t low = 0, high = items;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (start(middle) + middle < unit) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  parallel->For(start(items) + items, cost, [&](int64_t begin, int64_t end) {
    const int64_t first = first_from(begin), last = first_from(end);
    if (first < last) body(first, last);
  });
}

// Cycles that a row of `bytes` costs: what arrives from memory, and the work of starting a row.
int64_t RowCost(int64_t bytes) { return 40 + bytes / 4; }

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

template <typename Id>
void PlanEmbeddingGrad(const Bags<Id>& bags, Combiner combiner, int64_t rows, Parallel* parallel, EmbeddingGradPlan* plan) {
  GroupIds(bags.ids, bags.num_ids, &plan->groups, parallel);
  const std::vector<int64_t>& unique = plan->groups.unique;
  plan->num_unique = std::lower_bound(unique.begin(), unique.end(), rows) - unique.begin();
  plan->bag.clear();
  plan->factor.clear();
  const bool single = bags.row_splits == nullptr && bags.bag_size == 1;
  const bool scaled = combiner != Combiner::kSum || bags.weights != nullptr;
  if (single && !scaled) return;

  // By position first, bag after bag; then in the order of the groups.
  const auto start = [&bags](int64_t b) { return bags.begin(b); };
  std::vector<float> factor(scaled ? bags.num_ids : 0);
  std::vector<int32_t> bag(bags.row_splits != nullptr ? bags.num_ids : 0);
  if (scaled || !bag.empty()) {
    ForWeighted(bags.num_bags, start, 4, parallel, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        const int64_t begin = bags.begin(b), end = bags.begin(b + 1);
        if (!bag.empty()) std::fill(bag.begin() + begin, bag.begin() + end, static_cast<int32_t>(b));
        if (!scaled) continue;
        const float scale = Denominator(bags, combiner, rows, begin, end);
        for (int64_t p = begin; p < end; ++p) {
          const float w = bags.weights != nullptr ? bags.weights[p] : 1.f;
          factor[p] = scale == 0.f ? 0.f : w / scale;
        }
      }
    });
  }
  const std::vector<int32_t>& order = plan->groups.order;
  plan->bag.resize(single ? 0 : order.size());
  plan->factor.resize(scaled ? order.size() : 0);
  parallel->For(static_cast<int64_t>(order.size()), 8, [&](int64_t begin, int64_t end) {
    const uint32_t size = static_cast<uint32_t>(std::max<int64_t>(1, bags.bag_size));
    if (!single) {
      for (int64_t i = begin; i < end; ++i) {
        plan->bag[i] = bag.empty() ? static_cast<int32_t>(static_cast<uint32_t>(order[i]) / size) : bag[order[i]];
      }
    }
    if (scaled) {
      for (int64_t i = begin; i < end; ++i) plan->factor[i] = factor[order[i]];
    }
  });
}

template <typename T>
void EmbeddingGradRows(const EmbeddingGradPlan& plan, const T* grad, int64_t dim, int64_t* unique_ids, T* rows_out,
                       Parallel* parallel) {
  const SumRows<T> sum_rows = Pick(LARGEOUT_SELECT(kEmbeddingGradKernels), grad);
  const Groups& groups = plan.groups;
  const int64_t occurrences = groups.starts[plan.num_unique];
  const int64_t cost = RowCost(dim * sizeof(T)) / 2;
  SumRowsArgs args;
  args.source = plan.bag.empty() ? groups.order.data() : plan.bag.data();
  args.factor = plan.factor.empty() ? nullptr : plan.factor.data();
  args.starts = groups.starts.data();
  args.dim = dim;
  args.first_column = 0, args.last_column = dim;
  // A row that would keep one thread busy while the others wait is left out here and split by columns below.
  args.most = std::max<int64_t>(1024, occurrences / (2 * parallel->threads()));
  if (parallel->threads() == 1) args.most = std::numeric_limits<int64_t>::max();
  ForWeighted(
      plan.num_unique, [&](int64_t g) { return args.starts[g]; }, cost, parallel, [&](int64_t first, int64_t last) {
        std::copy(groups.unique.begin() + first, groups.unique.begin() + last, unique_ids + first);
        sum_rows(args, grad, first, last, rows_out);
      });
  if (occurrences <= args.most) return;
  constexpr int64_t kColumns = 16;
  const int64_t pieces = (dim + kColumns - 1) / kColumns;
  for (int64_t g = 0; g < plan.num_unique; ++g) {
    const int64_t count = args.starts[g + 1] - args.starts[g];
    if (count <= args.most) continue;
    parallel->For(pieces, std::max<int64_t>(1, count * cost / pieces), [&](int64_t begin, int64_t end) {
      SumRowsArgs part = args;
      part.most = std::numeric_limits<int64_t>::max();
      part.first_column = begin * kColumns, part.last_column = std::min(dim, end * kColumns);
      sum_rows(part, grad, g, g + 1, rows_out);
    });
  }
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
template void EmbeddingGradRows<float>(const EmbeddingGradPlan&, const float*, int64_t, int64_t*, float*, Parallel*);
template void EmbeddingGradRows<bfloat16>(const EmbeddingGradPlan&, const bfloat16*, int64_t, int64_t*, bfloat16*, Parallel*);
template int64_t FirstBadId<int32_t>(const int32_t*, int64_t, int64_t);
template int64_t FirstBadId<int64_t>(const int64_t*, int64_t, int64_t);
template void PlanEmbeddingGrad<int32_t>(const Bags<int32_t>&, Combiner, int64_t, Parallel*, EmbeddingGradPlan*);
template void PlanEmbeddingGrad<int64_t>(const Bags<int64_t>&, Combiner, int64_t, Parallel*, EmbeddingGradPlan*);

}  // namespace largeout
