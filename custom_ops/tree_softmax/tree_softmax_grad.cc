// The gradient. Small groups (few tokens) do everything in one task, block of rows by block of rows, so that
// a table row comes from memory once. Groups of many tokens are cut twice: token blocks give d_hidden, row
// blocks x column blocks give the row gradients over all tokens in a fixed order.
//
// Tasks run in *waves*. Within one level of the tree a token is in one node only, so tasks write disjoint
// rows of d_hidden, and levels follow each other in a fixed order. Where probabilities were not saved, a wave
// also ends when those of its large groups fill the scratch memory; their row gradients then follow at once.
//
// Who takes the gradients of rows as they are made gets them block by block: of small groups when nothing
// reads the block again, of large ones when their wave is over.
#include <algorithm>
#include <type_traits>

#include "tree_softmax/tree_softmax.h"
#include "tree_softmax/tree_softmax_floats.h"
#include "tree_softmax/tree_softmax_kernels.h"
#include "tree_softmax/tree_softmax_products.h"
#include "tree_softmax/tree_softmax_waves.h"

namespace largeout {
namespace {

// Table rows of a task's inner step. Where they serve both gradients they stay in L2 (156 KB at dim 304); where they serve
// d_hidden alone, more rows mean that less often its partial sums leave L1.
constexpr int64_t kRowBlock = 128;
constexpr int64_t kLongRowBlock = 512;
constexpr int64_t kSumRows = 48;  // a row-gradient task: 48 rows x 96 columns stay in L1
constexpr int64_t kSumColumns = 96;
// Of probabilities of a wave that were not saved, and of sums of rows for a taker. With more the caches would
// be left, and nothing gained: 256 MB were 0 to 5% slower.
constexpr int64_t kMostScratchBytes = 32 << 20;

template <typename T>
struct GradScratch {
  Buffer<float> gradient, scale, sums;
  ProductScratch products;
  Buffer<T> rows;  // for a taker
  Buffer<const float*> hidden;
  Buffer<float*> d_hidden;
};

template <typename T>
class GradientPass {
 public:
  GradientPass(const TreeArrays& tree, const TreeTable<T>& table, const float* hidden, const float* weights,
               const float* grad_loss, const TreeSaved& saved, float* d_hidden, T* row_grads,
               TreeRowTaker<T>* taker, float* bias_grads)
      : groups_(tree, saved.group_node, saved.group_start, saved.groups),
        table_(table),
        hidden_(hidden),
        weights_(weights),
        grad_loss_(grad_loss),
        saved_(saved),
        d_hidden_(d_hidden),
        row_grads_(row_grads),
        taker_(taker),
        bias_grads_(bias_grads),
        dim_(table.dim),
        products_(table, kernels_.dot) {}

  void Run(const TreeArrays& tree, int64_t tokens, int64_t scratch_bytes, int64_t* rows, Parallel* parallel) {
    const TreeWaves plan(tree, groups_, saved_, dim_,
                         std::min(scratch_bytes, kMostScratchBytes) / static_cast<int64_t>(sizeof(float)),
                         taker_ != nullptr);
    float* kept = kept_.Get(plan.kept_size);
    const bool carries = taker_ != nullptr || !std::is_same<T, float>::value;
    float* partial = carries ? partial_.Get(plan.sum_rows() * dim_) : nullptr;
    ZeroSkipped(plan, tokens, parallel);
    parallel->For(groups_.count, 100, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        for (int64_t j = 0; j < groups_.size[g]; ++j) rows[groups_.row_start[g] + j] = groups_.first_row[g] + j;
      }
    });
    std::vector<SumTask> sums;
    for (const TreeWave& wave : plan.waves) {
      RunTasks<GradScratch<T>>(
          parallel, wave.task_end - wave.task_begin, kTaskCost / 8, [&](int64_t i, GradScratch<T>* scratch) {
            const TreeTask& task = plan.tasks[wave.task_begin + i];
            const int64_t range = plan.task_range[wave.task_begin + i];
            if (range >= 0) {
              const TreeRange& r = plan.ranges[range];
              float* out =
                  kept == nullptr ? nullptr : kept + r.kept + (task.begin - r.begin) * groups_.size[r.group];
              return Block(task.group, task.begin, task.end, wave.level > 0, false, out, scratch);
            }
            for (int64_t g = task.group; g < task.group_end; ++g) {
              if (g + 1 < task.group_end) {
                kernels_.dot.prefetch(table_.rows + groups_.first_row[g + 1] * dim_,
                                      std::min<int64_t>(groups_.size[g + 1], 16), dim_);
              }
              Block(g, groups_.start[g], groups_.start[g + 1], wave.level > 0, true, nullptr, scratch);
            }
          });
      for (int64_t i = wave.range_begin; i < wave.range_end; ++i) AddSumTasks(plan.ranges[i], &sums);
      const bool last = &wave == &plan.waves.back();
      if (sums.empty() || (saved_.probs != nullptr && !last && taker_ == nullptr)) continue;
      RunTasks<GradScratch<T>>(
          parallel, static_cast<int64_t>(sums.size()), kTaskCost / 8,
          [&](int64_t i, GradScratch<T>* scratch) { SumRows(sums[i], kept, partial, scratch); });
      if (taker_ != nullptr) HandOver(sums, partial, parallel);
      sums.clear();
    }
  }

 private:
  // Rows [row, row_end) of the group and columns [column, column_end), over the pairs of a range.
  struct SumTask {
    TreeRange range;
    int64_t row, row_end, column, column_end;
  };

  void ZeroSkipped(const TreeWaves& plan, int64_t tokens, Parallel* parallel) {
    std::vector<uint8_t> written(tokens, 0);
    for (int64_t g = 0; g < groups_.count && plan.level[g] == 0; ++g) {
      for (int64_t p = groups_.start[g]; p < groups_.start[g + 1]; ++p) written[saved_.pair_token[p]] = 1;
    }
    parallel->For(tokens, dim_ / 8 + 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        if (!written[t]) std::fill_n(d_hidden_ + t * dim_, dim_, 0.f);
      }
    });
  }

  float Scale(int64_t pair) const {
    const int64_t t = saved_.pair_token[pair];
    return weights_ != nullptr ? grad_loss_[t] * weights_[t] : grad_loss_[t];
  }

  // d_hidden of the pairs [begin, end) of group g; `whole`: the row gradients too. Computed probabilities go to `keep`.
  void Block(int64_t g, int64_t begin, int64_t end, bool add, bool whole, float* keep,
             GradScratch<T>* scratch) {
    const int64_t size = groups_.size[g], first = groups_.first_row[g], m = end - begin;
    const int64_t width = std::min(size, whole ? kRowBlock : kLongRowBlock);
    const int32_t *token = saved_.pair_token + begin, *target = saved_.pair_row + begin;
    float *gradient = scratch->gradient.Get(m * width), *scale = scratch->scale.Get(m);
    const float** h = scratch->hidden.Get(m);
    float** dh = scratch->d_hidden.Get(m);
    for (int64_t i = 0; i < m; ++i) {
      scale[i] = Scale(begin + i);
      h[i] = hidden_ + token[i] * dim_;
      dh[i] = d_hidden_ + token[i] * dim_;
    }
    const bool packed = products_.Has(groups_.pairs(g), size);
    float* sums = packed ? scratch->sums.Get((m + width) * dim_) : nullptr;
    const float* panels =
        packed && whole ? products_.PackHidden(hidden_, token, m, 0, dim_, &scratch->products) : nullptr;
    for (int64_t j = 0; j < size; j += width) {
      const int64_t n = std::min(width, size - j);
      const T* rows = table_.rows + (first + j) * dim_;
      const int32_t first_row = static_cast<int32_t>(first + j);
      const float* probs = saved_.probs != nullptr
                               ? saved_.probs + groups_.prob_start[g] + (begin - groups_.start[g]) * size + j : nullptr;
      if (probs == nullptr) {
        float* computed = keep != nullptr ? keep + j : gradient;
        const int64_t ld = keep != nullptr ? size : n;
        products_.Logits(packed, hidden_, token, m, first + j, n, computed, ld, &scratch->products);
        kernels_.exp.normalize(computed, ld, m, n, saved_.pair_lse + begin);
        kernels_.exp.gradient(computed, ld, m, n, target, first_row, scale, gradient, n);
      } else {
        kernels_.exp.gradient(probs, size, m, n, target, first_row, scale, gradient, n);
      }
      if (packed) {
        products_.ToHidden(gradient, m, rows, n, j > 0, sums, &scratch->products);
      } else {
        const T* row_pointers[kLongRowBlock];
        for (int64_t i = 0; i < n; ++i) row_pointers[i] = rows + i * dim_;
        kernels_.rows_to_hidden(m, n, dim_, gradient, n, 1, row_pointers, dh, add || j > 0);
      }
      if (!whole) continue;
      T* grads = taker_ != nullptr ? scratch->rows.Get(width * dim_)
                                   : row_grads_ + (groups_.row_start[g] + j) * dim_;
      if (packed) {
        RowsFromPanels(gradient, m, n, panels, sums + m * dim_, grads, scratch);
      } else {
        T* out[kRowBlock];
        for (int64_t i = 0; i < n; ++i) out[i] = grads + i * dim_;
        kernels_.hidden_to_rows(n, m, dim_, gradient, 1, n, h, out, false);
      }
      if (taker_ != nullptr) taker_->Take(first + j, n, std::min(kRowBlock, size - j - n), grads);
      if (bias_grads_ != nullptr) {
        kernels_.exp.column_sums(gradient, n, m, n, bias_grads_ + groups_.row_start[g] + j, false);
      }
    }
    for (int64_t i = 0; packed && i < m; ++i) {
      const float* sum = sums + i * dim_;
      if (!add) {
        std::copy_n(sum, dim_, dh[i]);
      } else {
        for (int64_t k = 0; k < dim_; ++k) dh[i][k] += sum[k];
      }
    }
  }

  // The gradients of n rows of a small group, by way of `floats` [n, dim] where they are of bfloat16.
  void RowsFromPanels(const float* gradient, int64_t m, int64_t n, const float* panels, float* floats,
                      T* grads, GradScratch<T>* scratch) {
    if constexpr (std::is_same<T, float>::value) {
      products_.ToRows(gradient, m, n, panels, dim_, false, grads, &scratch->products);
    } else {
      products_.ToRows(gradient, m, n, panels, dim_, false, floats, &scratch->products);
      kernels_.exp.from_floats(floats, n * dim_, grads);
    }
  }

  void AddSumTasks(const TreeRange& range, std::vector<SumTask>* sums) const {
    // One block even where rows have no elements: the bias is summed with the first.
    const int64_t blocks = std::max<int64_t>(1, (dim_ + kSumColumns - 1) / kSumColumns);
    const int64_t columns = ((dim_ + blocks - 1) / blocks + 15) / 16 * 16;
    for (int64_t row = 0; row < groups_.size[range.group]; row += kSumRows) {
      for (int64_t block = 0; block < blocks; ++block) {
        sums->push_back({range, row, std::min(groups_.size[range.group], row + kSumRows), block * columns,
                         std::min(dim_, (block + 1) * columns)});
      }
    }
  }

  void SumRows(const SumTask& task, const float* kept, float* partial, GradScratch<T>* scratch) {
    const TreeRange& range = task.range;
    const int64_t size = groups_.size[range.group], n = task.row_end - task.row, columns = task.column_end - task.column;
    const int32_t first_row = static_cast<int32_t>(groups_.first_row[range.group] + task.row);
    const float* probs = saved_.probs != nullptr
                             ? saved_.probs + groups_.prob_start[range.group] + (range.begin - groups_.start[range.group]) * size
                             : kept + range.kept;
    const int64_t out_row = groups_.row_start[range.group] + task.row;
    const bool packed = products_.Has(groups_.pairs(range.group), size);
    float* bias = bias_grads_ != nullptr && task.column == 0 ? bias_grads_ + out_row : nullptr;
    float* gradient = scratch->gradient.Get(kTreeSumDepth * kSumRows);
    alignas(64) float sums[kSumRows * kSumColumns];
    float *sum_rows[kSumRows], scale[kTreeSumDepth];
    const float* h[kTreeSumDepth];
    for (int64_t i = 0; i < n; ++i) sum_rows[i] = sums + i * columns;
    // What an earlier range of the same group left.
    float* before = nullptr;
    if (taker_ != nullptr) {
      before = partial + (range.partial + task.row) * dim_ + task.column;
    } else if constexpr (std::is_same<T, float>::value) {
      before = row_grads_ + out_row * dim_ + task.column;
    } else if (!(range.first && range.last)) {
      before = partial + (range.partial + task.row) * dim_ + task.column;
    }
    if (!range.first) {
      for (int64_t i = 0; i < n; ++i) std::copy_n(before + i * dim_, columns, sum_rows[i]);
    }
    for (int64_t begin = range.begin; begin < range.end; begin += kTreeSumDepth) {
      const int64_t depth = std::min(kTreeSumDepth, range.end - begin);
      const bool add = !range.first || begin > range.begin;
      for (int64_t k = 0; k < depth; ++k) {
        scale[k] = Scale(begin + k);
        h[k] = hidden_ + saved_.pair_token[begin + k] * dim_ + task.column;
      }
      // Pieces of rows far apart: the hardware does not foresee the next ones.
      for (int64_t pair = begin + depth; pair < std::min(begin + 2 * depth, range.end); ++pair) {
        const float* next = probs + (pair - range.begin) * size + task.row;
        for (int64_t j = 0; j < n; j += 16) __builtin_prefetch(next + j, 0, 2);
        __builtin_prefetch(next + n - 1, 0, 2);
      }
      kernels_.exp.gradient(probs + (begin - range.begin) * size + task.row, size, depth, n, saved_.pair_row + begin,
                            first_row, scale, gradient, n);
      if (packed) {
        const float* panels = products_.PackHidden(hidden_, saved_.pair_token + begin, depth, task.column,
                                                   columns, &scratch->products);
        products_.ToRows(gradient, depth, n, panels, columns, add, sums, &scratch->products);
      } else {
        kernels_.sum.from_float(n, depth, columns, gradient, 1, n, h, sum_rows, add);
      }
      if (bias != nullptr) kernels_.exp.column_sums(gradient, n, depth, n, bias, add);
    }
    for (int64_t i = 0; i < n; ++i) {
      if (before != nullptr && (taker_ != nullptr || std::is_same<T, float>::value || !range.last)) {
        std::copy_n(sum_rows[i], columns, before + i * dim_);
      } else if constexpr (!std::is_same<T, float>::value) {
        kernels_.exp.from_floats(sum_rows[i], columns, row_grads_ + (out_row + i) * dim_ + task.column);
      }
    }
  }

  // The rows whose sums are whole go to the taker.
  void HandOver(const std::vector<SumTask>& sums, const float* partial, Parallel* parallel) {
    std::vector<const SumTask*> whole;
    for (const SumTask& task : sums) {
      if (task.column == 0 && task.range.last) whole.push_back(&task);
    }
    RunTasks<GradScratch<T>>(parallel, static_cast<int64_t>(whole.size()), kSumRows * dim_,
                             [&](int64_t i, GradScratch<T>* scratch) {
                               const SumTask& task = *whole[i];
                               const int64_t n = task.row_end - task.row;
                               const float* from = partial + (task.range.partial + task.row) * dim_;
                               const T* grads;
                               if constexpr (std::is_same<T, float>::value) {
                                 grads = from;
                               } else {
                                 T* rounded = scratch->rows.Get(n * dim_);
                                 kernels_.exp.from_floats(from, n * dim_, rounded);
                                 grads = rounded;
                               }
                               taker_->Take(groups_.first_row[task.range.group] + task.row, n, 0, grads);
                             });
  }

  const TreeKernels<T> kernels_;
  const TreeGroups groups_;
  const TreeTable<T> table_;
  const float *hidden_, *weights_, *grad_loss_;
  const TreeSaved saved_;
  float* d_hidden_;
  T* row_grads_;            // or null, where
  TreeRowTaker<T>* taker_;  // is not
  float* bias_grads_;
  const int64_t dim_;
  const TreeProducts<T> products_;
  Buffer<float> kept_, partial_;
};

// Hidden vectors, and where their gradients belong, in float32.
template <typename T, typename H>
int Run(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden, const float* weights,
        const float* grad_loss, int64_t tokens, const TreeSaved& saved, int64_t scratch_bytes, H* d_hidden,
        int64_t* rows, T* row_grads, TreeRowTaker<T>* taker, float* bias_grads, const CpuCall& call) {
  const int64_t n = tokens * table.dim;
  const float* floats;
  LARGEOUT_RETURN_IF_ERROR(Floats(hidden, n, call, &floats));
  float* d_floats;
  if constexpr (std::is_same_v<H, float>) {
    d_floats = d_hidden;
  } else {
    d_floats = call.scratch->template Take<float>(n);
    if (d_floats == nullptr) return kNoMemory;
  }
  GradientPass<T> pass(tree, TableFor<H>(table), floats, weights, grad_loss, saved, d_floats, row_grads,
                       taker, bias_grads);
  pass.Run(tree, tokens, scratch_bytes, rows, call.parallel);
  if constexpr (!std::is_same_v<H, float>) FromFloats(d_floats, n, d_hidden, call.parallel);
  return 0;
}

}  // namespace

template <>
template <typename T, typename H>
int TreeSoftmaxCpu::Gradient(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden,
                             const float* weights, const float* grad_loss, int64_t tokens,
                             const TreeSaved& saved, int64_t scratch_bytes, H* d_hidden, int64_t* rows,
                             T* row_grads, float* bias_grads) {
  return Run<T>(tree, table, hidden, weights, grad_loss, tokens, saved, scratch_bytes, d_hidden, rows,
                row_grads, nullptr, bias_grads, call_);
}

template <typename T, typename H>
int TreeSoftmaxGradTo(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden,
                      const float* weights, const float* grad_loss, int64_t tokens, const TreeSaved& saved,
                      int64_t scratch_bytes, H* d_hidden, int64_t* rows, TreeRowTaker<T>* taker,
                      float* bias_grads, const CpuCall& call) {
  return Run<T>(tree, table, hidden, weights, grad_loss, tokens, saved, scratch_bytes, d_hidden, rows,
                nullptr, taker, bias_grads, call);
}

#define LARGEOUT_GRADIENTS(T, H)                                                                       \
  template int TreeSoftmaxCpu::Gradient<T, H>(const TreeArrays&, const TreeTable<T>&, const H*,        \
                                              const float*, const float*, int64_t, const TreeSaved&,   \
                                              int64_t, H*, int64_t*, T*, float*);                      \
  template int TreeSoftmaxGradTo<T, H>(const TreeArrays&, const TreeTable<T>&, const H*, const float*, \
                                       const float*, int64_t, const TreeSaved&, int64_t, H*, int64_t*, \
                                       TreeRowTaker<T>*, float*, const CpuCall&);
LARGEOUT_GRADIENTS(float, float)
LARGEOUT_GRADIENTS(float, bfloat16)
LARGEOUT_GRADIENTS(bfloat16, float)
LARGEOUT_GRADIENTS(bfloat16, bfloat16)

}  // namespace largeout
