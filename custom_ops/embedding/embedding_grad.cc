// The gradient of the table: what a batch touches, and the sums of its rows.
#include <algorithm>
#include <limits>
#include <memory>

#include "embedding/embedding.h"
#include "embedding/embedding_kernels.h"
#include "embedding/embedding_tasks.h"

namespace largeout {
namespace {

SumRows<float> Pick(const EmbeddingGradKernels& k, const float*) { return k.of_float; }
SumRows<bfloat16> Pick(const EmbeddingGradKernels& k, const bfloat16*) { return k.of_bfloat16; }

// The sums of a gradient's rows, any of them at a time.
template <typename T>
class GradSums {
 public:
  GradSums(const EmbeddingGradPlan& plan, const T* grad, int64_t dim, Parallel* parallel)
      : sum_rows_(Pick(LARGEOUT_SELECT(kEmbeddingGradKernels), grad)), plan_(plan), grad_(grad), parallel_(parallel) {
    args_.source = plan.groups.order.data();
    args_.factor = plan.factor.empty() ? nullptr : plan.factor.data();
    args_.starts = plan.groups.starts.data();
    args_.dim = dim;
    args_.first_column = 0, args_.last_column = dim;
    // A row that would keep one thread busy while the others wait is hot: it is split by columns.
    const int64_t occurrences = args_.starts[plan.num_unique];
    args_.most = std::max<int64_t>(1024, occurrences / (2 * parallel->threads()));
    if (parallel->threads() == 1) args_.most = std::numeric_limits<int64_t>::max();
    any_hot_ = occurrences > args_.most;
  }

  const int64_t* ids() const { return plan_.groups.unique.data(); }
  bool IsHot(int64_t g) const { return any_hot_ && Count(g) > args_.most; }

  // body(first, last) on ranges of rows that threads share, evenly by their occurrences.
  template <typename Body>
  void ForRows(const Body& body) const {
    ForWeighted(plan_.num_unique, [&](int64_t g) { return args_.starts[g]; }, Cost(), parallel_, body);
  }
  // Rows [first, last) into out [last - first, dim], but for hot ones. Those up to `known` come next on this thread.
  void Sum(int64_t first, int64_t last, int64_t known, T* out) const {
    SumRowsArgs args = args_;
    args.known = known;
    sum_rows_(args, grad_, first, last, out);
  }

  // body(g) for each hot row, one after another.
  template <typename Body>
  void ForHotRows(const Body& body) const {
    for (int64_t g = 0; any_hot_ && g < plan_.num_unique; ++g) {
      if (IsHot(g)) body(g);
    }
  }
  // One row into out [dim], by all threads.
  void SumHot(int64_t g, T* out) const {
    constexpr int64_t kColumns = 16;
    const int64_t dim = args_.dim, pieces = (dim + kColumns - 1) / kColumns;
    parallel_->For(pieces, std::max<int64_t>(1, Count(g) * Cost() / std::max<int64_t>(1, pieces)),
                   [&](int64_t begin, int64_t end) {
                     SumRowsArgs part = args_;
                     part.most = std::numeric_limits<int64_t>::max();
                     part.first_column = begin * kColumns, part.last_column = std::min(dim, end * kColumns);
                     sum_rows_(part, grad_, g, g + 1, out);
                   });
  }

 private:
  int64_t Count(int64_t g) const { return args_.starts[g + 1] - args_.starts[g]; }
  int64_t Cost() const { return RowCost(args_.dim * sizeof(T)) / 2; }

  const SumRows<T> sum_rows_;
  const EmbeddingGradPlan& plan_;
  const T* grad_;
  Parallel* parallel_;
  SumRowsArgs args_ = {};
  bool any_hot_;
};

}  // namespace

template <typename Id>
void PlanEmbeddingGrad(const Bags<Id>& bags, Combiner combiner, int64_t rows, Parallel* parallel, EmbeddingGradPlan* plan) {
  const bool single = bags.row_splits == nullptr && bags.bag_size == 1;
  const bool scaled = combiner != Combiner::kSum || bags.weights != nullptr;
  // By position first, bag after bag; then in the order of the groups.
  std::unique_ptr<int32_t[]> bag;
  std::unique_ptr<float[]> factor;
  if (!single) bag.reset(new int32_t[bags.num_ids]);
  if (scaled) factor.reset(new float[bags.num_ids]);
  if (scaled || !single) {
    const auto start = [&bags](int64_t b) { return bags.begin(b); };
    ForWeighted(bags.num_bags, start, 4, parallel, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        const int64_t begin = bags.begin(b), end = bags.begin(b + 1);
        if (!single) std::fill(&bag[begin], &bag[end], static_cast<int32_t>(b));
        if (!scaled) continue;
        const float scale = Denominator(bags, combiner, rows, begin, end);
        for (int64_t p = begin; p < end; ++p) {
          const float w = bags.weights != nullptr ? bags.weights[p] : 1.f;
          factor[p] = scale == 0.f ? 0.f : w / scale;
        }
      }
    });
  }
  GroupIds(bags.ids, bags.num_ids, &plan->groups, parallel, scaled ? nullptr : bag.get());
  const std::vector<int64_t>& unique = plan->groups.unique;
  plan->num_unique = std::lower_bound(unique.begin(), unique.end(), rows) - unique.begin();
  plan->factor.clear();
  if (!scaled) return;
  std::vector<int32_t>& order = plan->groups.order;
  plan->factor.resize(order.size());
  parallel->For(static_cast<int64_t>(order.size()), 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) plan->factor[i] = factor[order[i]];
    for (int64_t i = begin; !single && i < end; ++i) order[i] = bag[order[i]];
  });
}

template <>
template <typename Id>
int EmbeddingCpu::PlanGrad(const Bags<Id>& bags, Combiner combiner, int64_t rows) {
  PlanEmbeddingGrad(bags, combiner, rows, call_.parallel, &plan_);
  return 0;
}

template <>
int64_t EmbeddingCpu::num_unique() const {
  return plan_.num_unique;
}

template <>
template <typename T>
int EmbeddingCpu::GradRows(const T* grad, int64_t dim, int64_t* unique_ids, T* rows_out) {
  const GradSums<T> sums(plan_, grad, dim, call_.parallel);
  sums.ForRows([&](int64_t first, int64_t last) {
    std::copy(sums.ids() + first, sums.ids() + last, unique_ids + first);
    sums.Sum(first, last, last, rows_out + first * dim);
  });
  sums.ForHotRows([&](int64_t g) { sums.SumHot(g, rows_out + g * dim); });
  return 0;
}

namespace {

// Copies each row to its place.
template <typename T>
class ScatterBlocks : public GradBlocks<T> {
 public:
  ScatterBlocks(int64_t dim, T* out) : dim_(dim), out_(out) {}
  void Take(const int64_t* ids, int64_t n, int64_t, const T* sums) override {
    for (int64_t i = 0; i < n; ++i) std::copy_n(sums + i * dim_, dim_, out_ + ids[i] * dim_);
  }

 private:
  const int64_t dim_;
  T* const out_;
};

}  // namespace

template <>
template <typename T, typename Id>
int EmbeddingCpu::GradOfAllRows(const Bags<Id>& bags, Combiner combiner, int64_t rows, const T* grad, int64_t dim,
                                T* rows_out) {
  PlanEmbeddingGrad(bags, combiner, rows, call_.parallel, &plan_);
  if (plan_.num_unique == rows) {  // all rows of an exchange occur: each is where its group is
    const GradSums<T> sums(plan_, grad, dim, call_.parallel);
    sums.ForRows([&](int64_t first, int64_t last) { sums.Sum(first, last, last, rows_out + first * dim); });
    sums.ForHotRows([&](int64_t g) { sums.SumHot(g, rows_out + g * dim); });
    return 0;
  }
  call_.parallel->For(rows, std::max<int64_t>(1, dim / 8), [&](int64_t begin, int64_t end) {
    std::fill(rows_out + begin * dim, rows_out + end * dim, T());
  });
  ScatterBlocks<T> scatter(dim, rows_out);
  EmbeddingGradBlocks<T>(plan_, grad, dim, &scatter, call_.parallel);
  return 0;
}

template <typename T>
void EmbeddingGradBlocks(const EmbeddingGradPlan& plan, const T* grad, int64_t dim, GradBlocks<T>* blocks,
                         Parallel* parallel) {
  // Where blocks are smaller, waiting for rows overlaps less with adding up: 4 KiB cost 3% of a step, 16 to 64 KiB nothing.
  constexpr int64_t kBlockBytes = 32768;
  const GradSums<T> sums(plan, grad, dim, parallel);
  const int64_t size = std::max<int64_t>(1, kBlockBytes / std::max<int64_t>(1, dim * sizeof(T)));
  sums.ForRows([&](int64_t first, int64_t last) {
    std::vector<T> block(std::min(size, last - first) * dim);
    for (int64_t begin = first, end; begin < last; begin = end) {
      end = std::min(last, begin + size);
      sums.Sum(begin, end, last, block.data());
      for (int64_t g = begin, next; g < end; g = next) {  // runs of rows that were summed
        next = g + 1;
        if (sums.IsHot(g)) continue;
        while (next < end && !sums.IsHot(next)) ++next;
        blocks->Take(sums.ids() + g, next - g, last - next, block.data() + (g - begin) * dim);
      }
    }
  });
  std::vector<T> row;
  sums.ForHotRows([&](int64_t g) {
    row.resize(dim);
    sums.SumHot(g, row.data());
    blocks->Take(sums.ids() + g, 1, 0, row.data());
  });
}

template void EmbeddingGradBlocks<float>(const EmbeddingGradPlan&, const float*, int64_t, GradBlocks<float>*, Parallel*);
template void EmbeddingGradBlocks<bfloat16>(const EmbeddingGradPlan&, const bfloat16*, int64_t, GradBlocks<bfloat16>*, Parallel*);
template int EmbeddingCpu::GradRows<float>(const float*, int64_t, int64_t*, float*);
template int EmbeddingCpu::GradRows<bfloat16>(const bfloat16*, int64_t, int64_t*, bfloat16*);
#define LARGEOUT_INSTANTIATE(Id)                                                                          \
  template void PlanEmbeddingGrad<Id>(const Bags<Id>&, Combiner, int64_t, Parallel*, EmbeddingGradPlan*); \
  template int EmbeddingCpu::PlanGrad<Id>(const Bags<Id>&, Combiner, int64_t);                            \
  template int EmbeddingCpu::GradOfAllRows<float>(const Bags<Id>&, Combiner, int64_t, const float*,       \
                                                  int64_t, float*);                                       \
  template int EmbeddingCpu::GradOfAllRows<bfloat16>(const Bags<Id>&, Combiner, int64_t, const bfloat16*, \
                                                     int64_t, bfloat16*);
LARGEOUT_INSTANTIATE(int32_t)
LARGEOUT_INSTANTIATE(int64_t)
#undef LARGEOUT_INSTANTIATE

}  // namespace largeout
