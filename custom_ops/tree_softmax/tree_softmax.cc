// The loss: one task a run of small groups or a block of tokens of a large group, then one sum per token.
#include "tree_softmax/tree_softmax.h"

#include <cmath>
#include <limits>

#include "common/huge_pages.h"
#include "tree_softmax/tree_softmax_floats.h"
#include "tree_softmax/tree_softmax_kernels.h"
#include "tree_softmax/tree_softmax_products.h"
#include "tree_softmax/tree_softmax_tasks.h"

namespace largeout {
namespace {

constexpr int64_t kOnlineRows = 1024;  // columns of logits at a time where probabilities are not kept

struct LossScratch {
  Buffer<float> logits, ce, high, total;
  ProductScratch products;
};

std::vector<TreeTask> LossTasks(const TreeGroups& groups, int64_t dim) {
  std::vector<TreeTask> tasks;
  int64_t run_cost = kTaskCost;  // of the run that the last task is; full: start another
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t pairs = groups.pairs(g), block = TokenBlock(groups.size[g], dim);
    // Rows of no elements cost something too: the first group must start a task.
    const int64_t cost = std::max<int64_t>(1, groups.size[g] * dim * (pairs + kElementCost));
    if (pairs > block) {
      for (int64_t begin = 0; begin < pairs; begin += block) {
        tasks.push_back({g, g + 1, groups.start[g] + begin, groups.start[g] + std::min(pairs, begin + block)});
      }
      run_cost = kTaskCost;
    } else if (run_cost + cost > kTaskCost) {
      tasks.push_back({g, g + 1, groups.start[g], groups.start[g + 1]});
      run_cost = cost;
    } else {
      tasks.back().group_end = g + 1;
      tasks.back().end = groups.start[g + 1];
      run_cost += cost;
    }
  }
  return tasks;
}

template <typename T>
void LossOf(const TreeArrays& tree, const TreeTable<T>& table, const float* hidden, const float* weights,
            int64_t tokens, const TreePairs& pairs, float* loss, float* pair_lse, float* probs,
            Parallel* parallel) {
  const TreeKernels<T> kernels;
  const TreeProducts<T> products(table, kernels.dot);
  const int64_t dim = table.dim;
  const TreeGroups groups(tree, pairs.group_node.data(), pairs.group_start.data(),
                          static_cast<int64_t>(pairs.group_node.size()));
  const std::vector<TreeTask> tasks = LossTasks(groups, dim);
  Buffer<float> slot_ce_buffer;
  float* slot_ce = slot_ce_buffer.Get(static_cast<int64_t>(pairs.token.size()));

  const auto block = [&](int64_t g, int64_t begin, int64_t end, LossScratch* scratch) {
    const int64_t first = groups.first_row[g], size = groups.size[g], m = end - begin;
    const int32_t *token = pairs.token.data() + begin, *row = pairs.row.data() + begin;
    float* ce = scratch->ce.Get(m);
    const bool packed = products.Has(groups.pairs(g), size);
    if (probs != nullptr) {
      float* out = probs + groups.prob_start[g] + (begin - groups.start[g]) * size;
      products.Logits(packed, hidden, token, m, first, size, out, size, &scratch->products);
      kernels.exp.softmax(out, size, m, size, row, static_cast<int32_t>(first), pair_lse + begin, ce);
    } else {
      const int64_t width = std::min(size, kOnlineRows);
      float *logits = scratch->logits.Get(m * width), *high = scratch->high.Get(m), *total = scratch->total.Get(m);
      std::fill(high, high + m, -std::numeric_limits<float>::infinity());
      std::fill(total, total + m, 0.f);
      for (int64_t j = 0; j < size; j += width) {
        const int64_t n = std::min(width, size - j);
        products.Logits(packed, hidden, token, m, first + j, n, logits, width, &scratch->products);
        kernels.exp.online(logits, width, m, n, row, static_cast<int32_t>(first + j), high, total, ce);
      }
      for (int64_t i = 0; i < m; ++i) {
        const float log_total = std::log(total[i]);
        pair_lse[begin + i] = high[i] + log_total;
        ce[i] = (high[i] - ce[i]) + log_total;  // ce held the logit of the path's row
      }
    }
    for (int64_t i = 0; i < m; ++i) slot_ce[pairs.slot[begin + i]] = ce[i];
  };

  RunTasks<LossScratch>(parallel, static_cast<int64_t>(tasks.size()), kTaskCost / 8, [&](int64_t i, LossScratch* scratch) {
    const TreeTask& task = tasks[i];
    if (task.group_end == task.group + 1) return block(task.group, task.begin, task.end, scratch);
    for (int64_t g = task.group; g < task.group_end; ++g) {
      if (g + 1 < task.group_end) {
        kernels.dot.prefetch(table.rows + groups.first_row[g + 1] * dim, std::min<int64_t>(groups.size[g + 1], 16), dim);
      }
      block(g, groups.start[g], groups.start[g + 1], scratch);
    }
  });

  parallel->For(tokens, 50, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      double sum = 0.0;
      for (int64_t slot = pairs.token_start[t]; slot < pairs.token_start[t + 1]; ++slot) sum += slot_ce[slot];
      const bool skipped = pairs.token_start[t] == pairs.token_start[t + 1];
      loss[t] = skipped ? 0.f : static_cast<float>(weights != nullptr ? sum * weights[t] : sum);
    }
  });
}

}  // namespace

template <>
template <typename T, typename H>
int TreeSoftmaxCpu::Loss(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden,
                         const float* weights, int64_t tokens, const TreeLossOutputs& out,
                         int64_t /*scratch_bytes*/) {
  if (out.probs != nullptr) AdviseHugePages(out.probs, loss_.prob_count * sizeof(float));
  const float* floats;
  LARGEOUT_RETURN_IF_ERROR(Floats(hidden, tokens * table.dim, call_, &floats));
  if (out.group_start != nullptr) {
    std::copy(loss_.token.begin(), loss_.token.end(), out.pair_token);
    std::copy(loss_.row.begin(), loss_.row.end(), out.pair_row);
    std::copy(loss_.group_node.begin(), loss_.group_node.end(), out.group_node);
    std::copy(loss_.group_start.begin(), loss_.group_start.end(), out.group_start);
  }
  LossOf(tree, TableFor<H>(table), floats, weights, tokens, loss_, out.loss, out.pair_lse, out.probs,
         call_.parallel);
  return 0;
}

#define LARGEOUT_LOSS(T, H)                                                                               \
  template int TreeSoftmaxCpu::Loss<T, H>(const TreeArrays&, const TreeTable<T>&, const H*, const float*, \
                                          int64_t, const TreeLossOutputs&, int64_t);
LARGEOUT_LOSS(float, float)
LARGEOUT_LOSS(float, bfloat16)
LARGEOUT_LOSS(bfloat16, float)
LARGEOUT_LOSS(bfloat16, bfloat16)
#undef LARGEOUT_LOSS

void ToFloats(const bfloat16* in, int64_t n, float* out, Parallel* parallel) {
  const TreeExpKernels& kernels = LARGEOUT_SELECT(kTreeExp);
  parallel->For(n, 1, [&](int64_t begin, int64_t end) { kernels.to_floats(in + begin, end - begin, out + begin); });
}

void FromFloats(const float* in, int64_t n, bfloat16* out, Parallel* parallel) {
  const TreeExpKernels& kernels = LARGEOUT_SELECT(kTreeExp);
  parallel->For(n, 1, [&](int64_t begin, int64_t end) { kernels.from_floats(in + begin, end - begin, out + begin); });
}

}  // namespace largeout
