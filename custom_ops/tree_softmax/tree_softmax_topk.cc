// Exact top-k: best-first search over the nodes of the tree, one query at a time; the root, which every query needs, is
// computed for a block of queries at once.
#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "tree_softmax/tree_softmax.h"
#include "tree_softmax/tree_softmax_floats.h"
#include "tree_softmax/tree_softmax_kernels.h"
#include "tree_softmax/tree_softmax_tasks.h"

namespace largeout {
namespace {

constexpr int64_t kQueryBlock = 24;
constexpr int64_t kRootLimit = 1 << 20;  // floats of root logits for one block

// The key of comparisons: NaN counts as -inf, so that order is total and the search ends.
float Key(float log_prob) { return std::isnan(log_prob) ? -std::numeric_limits<float>::infinity() : log_prob; }

struct Word {
  float key, log_prob;
  int32_t id;
  bool operator<(const Word& other) const { return key > other.key || (key == other.key && id < other.id); }  // better
};

struct Open {
  float key, log_prob;
  int32_t node;
  bool operator<(const Open& other) const { return key < other.key || (key == other.key && node > other.node); }
};

struct Search {
  std::vector<Word> words;  // a heap, the worst of the best k on top
  std::vector<Open> open;   // a heap, the most probable on top
  int64_t rows = 0;         // of the nodes that were expanded
  Buffer<float> logits, root;
};

template <typename T>
class TopK {
 public:
  TopK(const TreeArrays& tree, const int32_t* row_child, const TreeTable<T>& table, const float* hidden, int64_t k)
      : tree_(tree), row_child_(row_child), table_(table), hidden_(hidden), k_(k), dim_(table.dim) {}

  // Leaves the words of the query in search->words, best first. root: the root's logits, or null.
  bool Find(int64_t query, float* root, Search* search) const {
    search->words.clear();
    search->open.clear();
    search->rows = 0;
    if (!Expand(query, 0, 0.f, root, search)) return false;
    while (!search->open.empty()) {
      const Open best = search->open.front();
      if (static_cast<int64_t>(search->words.size()) == k_) {
        const float worst = search->words.front().key;
        // Equal: a word below may tie and have the smaller id. At -inf that would mean walking the whole tree.
        if (best.key < worst || best.key == -std::numeric_limits<float>::infinity()) break;
      }
      std::pop_heap(search->open.begin(), search->open.end());
      search->open.pop_back();
      if (!Expand(query, best.node, best.log_prob, nullptr, search)) return false;
    }
    std::sort_heap(search->words.begin(), search->words.end());
    return true;
  }

  void Logits(int64_t query, int64_t queries, int64_t node, float* out) const {
    const int64_t first = tree_.node_start[node], size = tree_.node_start[node + 1] - first;
    kernels_.dot.dots(hidden_ + query * dim_, nullptr, queries, table_.rows + first * dim_, size, dim_,
                      table_.bias != nullptr ? table_.bias + first : nullptr, out, size);
  }

 private:
  bool Expand(int64_t query, int64_t node, float log_prob, float* logits, Search* search) const {
    const int64_t first = tree_.node_start[node], size = tree_.node_start[node + 1] - first;
    if (first < 0 || size < 1 || first + size > tree_.rows) return false;
    // Each row of a tree has one parent. Of a node with several, the paths would be without number.
    search->rows += size;
    if (search->rows > tree_.rows) return false;
    if (logits == nullptr) {
      logits = search->logits.Get(size);
      Logits(query, 1, node, logits);
    }
    float high = -std::numeric_limits<float>::infinity(), total = 0.f, picked = 0.f;
    const int32_t no_target = -1;
    kernels_.exp.online(logits, size, 1, size, &no_target, 0, &high, &total, &picked);
    const float log_total = std::log(total);
    for (int64_t j = 0; j < size; ++j) {
      const float child = log_prob + ((logits[j] - high) - log_total), key = Key(child);
      const bool full = static_cast<int64_t>(search->words.size()) == k_;
      if (full && key < search->words.front().key) continue;
      const int32_t id = row_child_[first + j];
      if (id >= 0) {
        if (id >= tree_.classes) return false;
        const Word word{key, child, id};
        if (full) {
          if (!(word < search->words.front())) continue;
          std::pop_heap(search->words.begin(), search->words.end());
          search->words.back() = word;
        } else {
          search->words.push_back(word);
        }
        std::push_heap(search->words.begin(), search->words.end());
      } else {
        if (~id <= node || ~id >= tree_.nodes) return false;
        search->open.push_back({key, child, ~id});
        std::push_heap(search->open.begin(), search->open.end());
      }
    }
    return true;
  }

  const TreeKernels<T> kernels_;
  const TreeArrays tree_;
  const int32_t* row_child_;
  const TreeTable<T> table_;
  const float* hidden_;
  const int64_t k_, dim_;
};

template <typename T, typename Id>
bool TopKOf(const TreeArrays& tree, const int32_t* row_child, const TreeTable<T>& table, const float* hidden,
            int64_t queries, int64_t k, float* log_probs, Id* ids, Parallel* parallel) {
  if (queries == 0 || k == 0) return true;
  const int64_t root_size = tree.node_start[1];
  if (tree.node_start[0] != 0 || root_size < 1 || root_size > tree.rows) return false;
  const TopK<T> topk(tree, row_child, table, hidden, k);
  const int64_t block = std::max<int64_t>(1, std::min(kQueryBlock, kRootLimit / root_size));
  std::atomic<bool> good{true};
  const int64_t blocks = (queries + block - 1) / block;
  RunTasks<Search>(parallel, blocks, block * 20000, [&](int64_t b, Search* search) {
    const int64_t begin = b * block, end = std::min(queries, begin + block);
    float* root = search->root.Get(block * root_size);
    topk.Logits(begin, end - begin, 0, root);
    for (int64_t q = begin; q < end; ++q) {
      if (!topk.Find(q, root + (q - begin) * root_size, search)) {
        good = false;
        return;
      }
      const int64_t found = std::min<int64_t>(k, static_cast<int64_t>(search->words.size()));
      if (found < k) good = false;
      for (int64_t i = 0; i < found; ++i) {
        log_probs[q * k + i] = search->words[i].log_prob;
        ids[q * k + i] = static_cast<Id>(search->words[i].id);
      }
    }
  });
  return good;
}

}  // namespace

template <>
template <typename T, typename H, typename Id>
int TreeSoftmaxCpu::TopK(const TreeArrays& tree, const int32_t* row_child, const TreeTable<T>& table,
                         const H* hidden, int64_t queries, int64_t k, float* log_probs, Id* ids, bool* ok) {
  const float* floats;
  LARGEOUT_RETURN_IF_ERROR(Floats(hidden, queries * table.dim, call_, &floats));
  *ok = TopKOf(tree, row_child, table, floats, queries, k, log_probs, ids, call_.parallel);
  return 0;
}

#define LARGEOUT_TREE_TOPK(T, H, Id)                                                                  \
  template int TreeSoftmaxCpu::TopK<T, H, Id>(const TreeArrays&, const int32_t*, const TreeTable<T>&, \
                                              const H*, int64_t, int64_t, float*, Id*, bool*);
#define LARGEOUT_TREE_TOPKS(T, H) LARGEOUT_TREE_TOPK(T, H, int32_t) LARGEOUT_TREE_TOPK(T, H, int64_t)
LARGEOUT_TREE_TOPKS(float, float)
LARGEOUT_TREE_TOPKS(float, bfloat16)
LARGEOUT_TREE_TOPKS(bfloat16, float)
LARGEOUT_TREE_TOPKS(bfloat16, bfloat16)
#undef LARGEOUT_TREE_TOPKS
#undef LARGEOUT_TREE_TOPK

}  // namespace largeout
