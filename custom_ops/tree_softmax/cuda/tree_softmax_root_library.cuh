// The root of a batch by products of cuBLASLt (tree_softmax_root_library.cu), where no probabilities are saved.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_ROOT_LIBRARY_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_ROOT_LIBRARY_CUH_

#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {

// Both return kNoProduct (common/cuda/blas.h) where the root is small, the call must not use the library, or there is
// none for these types. Otherwise the caller sets work.skipped to work.root.

// Writes pair_lse of the root's pairs, and pair_loss[slot].
template <typename T, typename H>
int RootLoss(const TreeBatch<T, H>& batch, const TreeWork& work, const int32_t* pair_slot, int64_t tokens,
             float* pair_loss, const GpuCall& call);

// Writes the gradients of the root's rows and biases, and its part of d_hidden, over what was there.
template <typename T, typename H>
int RootGradient(const TreeBatch<T, H>& batch, const TreeWork& work, int64_t tokens,
                 const TreeGradOutputs<T>& out, const GpuCall& call);

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_ROOT_LIBRARY_CUH_
