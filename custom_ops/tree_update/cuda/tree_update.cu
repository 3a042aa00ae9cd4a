#include "tree_softmax/cuda/tree_softmax_plan.h"
#include "tree_update/tree_update.h"

namespace largeout {

template <>
template <typename T, typename H>
int TreeUpdateGpu::Update(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden,
                          const float* weights, const float* grad_loss, int64_t tokens,
                          const TreeSaved& saved, int64_t scratch_bytes, int64_t touched,
                          const TreeStep<T>& step, H* d_hidden, int64_t* rows, float* bias_grads) {
  T* grads = call_.scratch->template Take<T>(touched * table.dim);
  if (grads == nullptr) return kNoMemory;
  LARGEOUT_RETURN_IF_ERROR(Gradient(tree, table, hidden, weights, grad_loss, tokens, saved, scratch_bytes,
                                    d_hidden, rows, grads, bias_grads));
  if (touched == 0 || table.dim == 0) return 0;
  BadIndex bad;  // there is none: Gradient gave the rows, which ascend
  return RowUpdateGpu(call_).Update(step.rule, step.rows, tree.rows, table.dim, step.slots, rows, touched,
                                    grads, step.numbers, &bad, /*increasing=*/true);
}

#define LARGEOUT_TREE_UPDATE(T, H)                                                                         \
  template int TreeUpdateGpu::Update<T, H>(const TreeArrays&, const TreeTable<T>&, const H*, const float*, \
                                           const float*, int64_t, const TreeSaved&, int64_t, int64_t,      \
                                           const TreeStep<T>&, H*, int64_t*, float*);
LARGEOUT_TREE_UPDATE(float, float)
LARGEOUT_TREE_UPDATE(float, bfloat16)
LARGEOUT_TREE_UPDATE(bfloat16, float)
LARGEOUT_TREE_UPDATE(bfloat16, bfloat16)

}  // namespace largeout
