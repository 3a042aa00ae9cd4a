// The gradient of a softmax over a tree and the optimizer's step on its table in one pass ("backward with
// fused optimizer" in FBGEMM). What TreeSoftmax::Gradient (tree_softmax.h) would write, RowUpdate
// (row_update.h) would read once: here the gradients of some rows stay in the cache and go into rows and
// slots at once, and no array has those of all rows that a batch touches. With nodes of thousands of children
// these are most of the table.
//
// Bounds of the speed, for U touched rows of D columns: bytes = U x D x (2 rows + 2 for each slot) and those
// of the hidden vectors; the two passes write and read U x D more. Flops are those of the gradient.
#ifndef LARGEOUT_TREE_UPDATE_TREE_UPDATE_H_
#define LARGEOUT_TREE_UPDATE_TREE_UPDATE_H_

#include "row_update/row_update.h"
#include "tree_softmax/tree_softmax.h"

namespace largeout {

// An optimizer step on the table: its rule, the table, the slots and the numbers.
template <typename T>
struct TreeStep {
  UpdateRule rule;
  T* rows;              // [rows, dim], the table's
  float* const* slots;  // as in row_update.h
  StepNumbers numbers;
};

// C: CpuCall (tree_update.cc), or GpuCall (cuda/tree_update.cu). A GPU takes one pass under SGD for narrow nodes of up
// to 64 tokens (below 32 children, or below 128 with fewer than 16 tokens), where rows are aligned. It takes two passes
// for other nodes and other rules: the gradients of a wide node's rows come from many blocks, and are in scratch memory
// between the passes.
template <typename C>
class TreeUpdate : public TreeSoftmax<C> {
 public:
  using TreeSoftmax<C>::TreeSoftmax;

  // As Gradient, after Resume or Check; rows of the table and slots are updated. touched: how many rows that
  // are. table.rows and step.rows are the same memory. The bits of rows and slots are those of Gradient
  // followed by RowUpdate, for any number of threads; d_hidden, rows and bias_grads are those of Gradient.
  template <typename T, typename H>
  int Update(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden, const float* weights,
             const float* grad_loss, int64_t tokens, const TreeSaved& saved, int64_t scratch_bytes,
             int64_t touched, const TreeStep<T>& step, H* d_hidden, int64_t* rows, float* bias_grads);
};

using TreeUpdateCpu = TreeUpdate<CpuCall>;
using TreeUpdateGpu = TreeUpdate<GpuCall>;

}  // namespace largeout

#endif  // LARGEOUT_TREE_UPDATE_TREE_UPDATE_H_
