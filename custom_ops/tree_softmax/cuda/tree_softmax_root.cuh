// The logits of a wide root for top-k, between tree_softmax_topk_root.cu and the search.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_ROOT_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_ROOT_CUH_

#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {

// Of some queries. A log probability is (logit - top) - log_total.
struct RootLogits {
  float* logits;           // [count, children], or null: the search computes them
  float *top, *log_total;  // [count]
  int64_t count, children;
};

// Memory for as many queries as fit 256 MB, or one.
template <typename T>
struct RootPlan {
  int Reserve(int64_t queries, int64_t size, Scratch* scratch);
  // Of `count` queries, at most `most`.
  int Compute(const TreeTable<T>& table, const float* hidden, int64_t count, const GpuCall& call);

  int64_t most = 0, children = 0;
  RootLogits logits{};
  float *high = nullptr, *total = nullptr;  // what the tiles leave
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_ROOT_CUH_
