// TreeUpdate on a GPU: the methods of TreeUpdateCpu (tree_update_cpu.h). In two passes, with the gradients of
// all touched rows in scratch memory between them: those of a wide node come from many blocks.
#ifndef LARGEOUT_TREE_UPDATE_TREE_UPDATE_GPU_H_
#define LARGEOUT_TREE_UPDATE_TREE_UPDATE_GPU_H_

#include "row_update/row_update.h"
#include "tree_softmax/cuda/tree_softmax_gpu.h"
#include "tree_update/tree_update.h"

namespace largeout {

class TreeUpdateGpu : public TreeSoftmaxGpu {
 public:
  explicit TreeUpdateGpu(const GpuCall& call) : TreeSoftmaxGpu(call), call_(call) {}

  template <typename T, typename H>
  int Update(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden, const float* weights,
             const float* grad_loss, int64_t tokens, const TreeSaved& saved, int64_t scratch_bytes,
             int64_t touched, const TreeStep<T>& step, H* d_hidden, int64_t* rows, float* bias_grads) {
    T* grads = call_.scratch->Take<T>(touched * table.dim);
    if (grads == nullptr) return kNoMemory;
    LARGEOUT_RETURN_IF_ERROR(Gradient(tree, table, hidden, weights, grad_loss, tokens, saved, scratch_bytes,
                                      d_hidden, rows, grads, bias_grads));
    if (touched == 0 || table.dim == 0) return 0;
    BadIndex bad;  // there is none: Gradient gave the rows, which ascend
    return RowUpdateGpu(call_).Update(step.rule, step.rows, tree.rows, table.dim, step.slots, rows, touched,
                                      grads, step.hyper, &bad, /*increasing=*/true);
  }

 private:
  const GpuCall call_;
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_UPDATE_TREE_UPDATE_GPU_H_
