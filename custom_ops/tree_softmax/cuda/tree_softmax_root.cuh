// A wide root, all its tokens or queries at once, by large products.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_ROOT_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_ROOT_CUH_

#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {

// Logits for top-k (tree_softmax_topk_root.cu), of some queries. A log probability is (logit - top) -
// log_total.
struct RootLogits {
  float* logits;           // [count, children], or null: the search computes them
  float *top, *log_total;  // [count]
  int64_t count, children;
};

// Memory for TreeTuning::kRootLogits logits (256 MB), or those of one query.
template <typename T>
struct RootPlan {
  int Reserve(int64_t queries, int64_t size, Scratch* scratch);
  // Of `count` queries, at most `most`.
  int Compute(const TreeTable<T>& table, const float* hidden, int64_t count, const GpuCall& call);

  int64_t most = 0, children = 0;
  RootLogits logits{};
  float *high = nullptr, *total = nullptr;  // what the tiles leave
};

// The root of a batch by products of cuBLASLt (tree_softmax_root_library.cu), where no probabilities are
// saved. Both return kNoProduct (common/cuda/blas.h) where the root is small, the call must not use the
// library, or there is none for these types. Otherwise the caller sets work.skipped to work.root.

// Writes pair_lse of the root's pairs, and pair_loss[slot].
template <typename T, typename H>
int RootLoss(const TreeBatch<T, H>& batch, const TreeWork& work, const int32_t* pair_slot, int64_t tokens,
             float* pair_loss, const GpuCall& call);

// Writes the gradients of the root's rows and biases, and its part of d_hidden, over what was there.
template <typename T, typename H>
int RootGradient(const TreeBatch<T, H>& batch, const TreeWork& work, int64_t tokens,
                 const TreeGradOutputs<T>& out, const GpuCall& call);

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_ROOT_CUH_
