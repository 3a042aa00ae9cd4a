// TreeUpdate on a CPU, as its op and its tests call it: what TreeSoftmaxCpu can, and the step. TreeUpdateGpu
// (cuda/tree_update_gpu.h) has the same methods.
#ifndef LARGEOUT_TREE_UPDATE_TREE_UPDATE_CPU_H_
#define LARGEOUT_TREE_UPDATE_TREE_UPDATE_CPU_H_

#include "tree_softmax/tree_softmax_cpu.h"
#include "tree_update/tree_update.h"

namespace largeout {

class TreeUpdateCpu : public TreeSoftmaxCpu {
 public:
  explicit TreeUpdateCpu(const CpuCall& call) : TreeSoftmaxCpu(call), parallel_(call.parallel) {}

  // As Gradient, after Resume or Check; rows of the table and slots are updated. touched: how many
  // rows that are.
  template <typename T, typename H>
  int Update(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden, const float* weights,
             const float* grad_loss, int64_t tokens, const TreeSaved& saved, int64_t scratch_bytes,
             int64_t /*touched*/, const TreeStep<T>& step, H* d_hidden, int64_t* rows, float* bias_grads) {
    return WithFloats(hidden, tokens * table.dim, d_hidden, [&](const float* floats, float* gradient) {
      TreeUpdate(tree, TableFor<H>(table), floats, weights, grad_loss, tokens, saved, scratch_bytes, step,
                 gradient, rows, bias_grads, parallel_);
      return 0;
    });
  }

 private:
  Parallel* const parallel_;
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_UPDATE_TREE_UPDATE_CPU_H_
