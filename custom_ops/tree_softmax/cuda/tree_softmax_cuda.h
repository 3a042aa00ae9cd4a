// The CUDA twin of tree_softmax.h: the same tensors, all in device memory (the tree's arrays too), and the
// same bits on every run: no float atomics, sums have an order that depends on the sizes alone. Any dim; rows
// are read in 16-byte pieces (8 for bfloat16) where dim is a multiple of 4. Wide nodes use tensor cores
// (common/cuda/gemm/): three products of TF32 for float32 tables, which lose 2^-22 of a product; bfloat16 for
// tables of bfloat16, where float32 factors keep 16 bits.
//
// H is the type of hidden vectors, float or bfloat16. Beside those of bfloat16 each product of a wide node is
// one of bfloat16: rows of float32, and the gradients of logits, are rounded, in loss and gradient alike.
// Sums are of float32, and those of bias gradients of what is not rounded. Narrow nodes and top-k take hidden
// vectors as float32.
//
//   TreeLossPlan plan;  // pairs, groups, sizes; PlanTreeLossCuda waits for the stream
//   PlanTreeLossCuda(tree, targets, weights, tokens, dim, likely_pairs, &scratch, &lasting, stream, &plan);
//   // look at plan.status; allocate the outputs of plan.pairs, plan.groups and plan.probs elements
//   TreeSoftmaxLossCuda(plan, tree, table, hidden, weights, tokens, outputs, &scratch, stream);
//
//   TreeGradPlan grad;  // the number of touched rows: plan.gradient, or from what was saved, by a wait
//   PlanTreeGradCuda(tree, saved, tokens, dim, round_rows, &scratch, stream, &grad);
//   TreeSoftmaxGradCuda(grad, tree, table, hidden, weights, grad_loss, tokens, saved, bytes, ...);
//
// Every function returns the first CUDA error as an int (0: success). Sizes reach the host where a function
// says that it waits; everything else is asynchronous on `stream`.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CUDA_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CUDA_H_

#include <cstdint>

#include "common/cuda/cuda.h"
#include "tree_softmax/tree_softmax.h"

namespace largeout {

constexpr int kNarrowChildren = 128;  // a narrow node has fewer

// Whether the node of n pairs and c children is wide.
LARGEOUT_HOST_DEVICE constexpr bool IsWide(int64_t n, int64_t c) {
  return c >= kNarrowChildren || (c >= 32 && n >= 16);
}

struct TreeOffsets;  // tree_softmax_work.cuh
struct NarrowSlice;

// How the groups of a batch are cut into pieces for the GPU. Device pointers, and sizes on the host.
struct TreeWork {
  int64_t pairs = 0, groups = 0;
  const int32_t *group_node = nullptr, *group_start = nullptr;
  const TreeOffsets* offsets = nullptr;  // [groups + 1] running sums of the sizes below
  const NarrowSlice* narrow = nullptr;   // [narrow_slices] up to 64 pairs of a narrow node; gradient only
  const int32_t* wide_group = nullptr;   // [wide_slices] up to 128 pairs of a wide node: its group
  const int32_t* tile_group = nullptr;       // [tiles] logits of a wide slice x 128 children; gradient only
  const int32_t* loss_tile_group = nullptr;  // [loss_tiles] the same x some hundreds; loss only
  const int32_t* weight_group = nullptr;     // [weight_tiles] gradients of 128 rows from a range of pairs
  const int32_t* sum_group = nullptr;        // [sum_rows] rows whose gradients come in parts
  const int32_t* level_start = nullptr;      // [levels + 1] the first group of a level
  int64_t rows = 0, probs = 0, narrow_slices = 0, wide_slices = 0, tiles = 0, loss_tiles = 0, terms = 0,
          weight_tiles = 0, partial_rows = 0, sum_rows = 0;
  int64_t max_children = 0, levels = 0;
  uint64_t narrow_levels = 0, wide_levels = 0;  // bit l: level l has such nodes; bit 63: any later one
};

struct TreeGradPlan {
  bool ok = true;  // CheckTreeSaved's answer
  TreeWork work;   // work.rows is U, work.probs is what probs must hold
};

struct TreeLossPlan {
  TreeStatus status = TreeStatus::kOk;
  int64_t bad_position = -1;                 // as TreePairs
  int64_t pairs = 0, groups = 0, probs = 0;  // P, G and S of tree_softmax.h
  const int32_t *pair_token = nullptr, *pair_row = nullptr, *pair_slot = nullptr, *pair_group = nullptr;
  const int32_t* token_start = nullptr;
  TreeWork work;
  TreeGradPlan gradient;  // what PlanTreeGradCuda would make, but for tables of bfloat16 without saved probs
};

// Makes memory for likely_pairs pairs, and sorts as many. Where they suffice it waits for the stream once,
// for the numbers of pairs, groups and probabilities; otherwise, or if likely_pairs is 0, twice.
// plan->gradient has its arrays in memory of `lasting`.
template <typename Id>
int PlanTreeLossCuda(const TreeArrays& tree, const Id* targets, const float* weights, int64_t tokens,
                     int64_t dim, int64_t likely_pairs, Scratch* scratch, Scratch* lasting, GpuStream stream,
                     TreeLossPlan* plan);

// plan.status must be kOk. Where outputs.probs is null no logits of wide nodes are in memory at all, but two
// numbers for each pair and some thousand children.
template <typename T, typename H>
int TreeSoftmaxLossCuda(const TreeLossPlan& plan, const TreeArrays& tree, const TreeTable<T>& table,
                        const H* hidden, const float* weights, int64_t tokens, const TreeLossOutputs& outputs,
                        Scratch* scratch, GpuStream stream);

// Waits for the stream once. `saved` is in device memory. For bfloat16 tables set round_rows.
int PlanTreeGradCuda(const TreeArrays& tree, const TreeSaved& saved, int64_t tokens, int64_t dim,
                     bool round_rows, Scratch* scratch, GpuStream stream, TreeGradPlan* plan);

// As TreeSoftmaxGrad; d_hidden is float32, for any H. plan.ok must be true. scratch_bytes bounds (up to two
// slices, of 128 pairs x children, or 64 where there are more than a million) the probabilities of wide nodes
// that are in memory at once when saved.probs is null. Beside them: what the splits of row gradients leave,
// and up to 35 MB of d_hidden's parts.
template <typename T, typename H>
int TreeSoftmaxGradCuda(const TreeGradPlan& plan, const TreeArrays& tree, const TreeTable<T>& table,
                        const H* hidden, const float* weights, const float* grad_loss, int64_t tokens,
                        const TreeSaved& saved, int64_t scratch_bytes, float* d_hidden, int64_t* rows,
                        T* row_grads, float* bias_grads, Scratch* scratch, GpuStream stream);

// As TreeTopK; *ok is its answer. The logits of a wide root are computed for many queries together, up to 256
// MB of them. Then one block a query, its open nodes in a heap of 1024 entries in shared memory. A query
// whose heap overflows is searched again with a heap of `nodes` entries in device memory, which cannot
// overflow, so the answer stays exact; several such queries share what memory there is and take their turns.
// Waits for the stream twice.
template <typename T, typename Id>
int TreeTopKCuda(const TreeArrays& tree, const int32_t* row_child, const TreeTable<T>& table,
                 const float* hidden, int64_t queries, int64_t k, float* log_probs, Id* ids,
                 Scratch* scratch, GpuStream stream, bool* ok);

// Hidden vectors in float32: themselves, or a copy in scratch memory.
int FloatsCuda(const float* in, int64_t n, Scratch* scratch, GpuStream stream, const float** out);
int FloatsCuda(const bfloat16* in, int64_t n, Scratch* scratch, GpuStream stream, const float** out);
// Their gradients in bfloat16.
int FromFloatsCuda(const float* in, int64_t n, bfloat16* out, GpuStream stream);

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CUDA_H_
