// Under SGD the rows of a narrow node whose pairs are one slice take their step where their gradient is summed,
// by the warp that holds row and gradient in registers: a row is read and written once, where two passes read or
// write it five times. The gradients of other rows come from many warps or blocks: they are written, and a second
// pass steps on these rows. Under rules with slots the second pass steps on all rows. It loads the slots of several
// rows at once, for which the kernel that sums has no registers.
#include "row_update/cuda/row_update_step.cuh"
#include "row_update/cuda/row_update_sums.h"
#include "tree_softmax/cuda/tree_softmax_narrow_grad.cuh"
#include "tree_update/tree_update.h"

namespace largeout {
namespace {

template <typename T>
struct StepBySgd {
  using Rule = gpu::Sgd;

  template <int kVec>
  __device__ __forceinline__ void Take(int64_t row, int64_t, int n, int64_t k, const float (&w)[8][kVec],
                                       const float (&gradient)[8][kVec]) const {
    const Rule rule(step.hyper);
    const gpu::Rounding<T> rounding(step.rounding);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j >= n) continue;
      float g[kVec];
#pragma unroll
      for (int i = 0; i < kVec; ++i) g[i] = RoundTo(gradient[j][i], step.table);
      RowColumns<Rule, T, kVec> columns;
      columns.w = Pack<T, kVec>::Of(w[j]);
      columns.Take(rule, g, rounding, rounding.OfRow(row + j), k);
      columns.Store(step, (row + j) * step.dim + k);
    }
  }
  TableStep<T> step;
};

template <typename T>
class SgdTaker final : public NarrowRowTaker<T> {
 public:
  SgdTaker(const TableStep<T>& step, int64_t* left) : NarrowRowTaker<T>(left), rows_{step} {}
  bool Takes(const TreeBatch<T>& batch, const TreeGradOutputs<T>& out) const override {
    return NarrowGradAligned(batch, out);
  }
  int Gradient(const TreeBatch<T>& batch, const TreeWork& work, int64_t level, const ProbChunk& chunk,
               const TreeGradOutputs<T>& out, GpuStream stream) const override {
    return NarrowGradTo<4>(rows_, batch, work, level, chunk, out, stream);
  }

 private:
  const StepBySgd<T> rows_;
};

}  // namespace

template <>
template <typename T, typename H>
int TreeUpdateGpu::Update(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden,
                          const float* weights, const float* grad_loss, int64_t tokens,
                          const TreeSaved& saved, int64_t scratch_bytes, int64_t touched,
                          const TreeStep<T>& step, H* d_hidden, int64_t* rows, float* bias_grads) {
  T* grads = call_.scratch->template Take<T>(touched * table.dim);
  const bool sgd = step.rule == UpdateRule::kSgd;
  int64_t* left = sgd ? call_.scratch->template Take<int64_t>(touched) : rows;
  if (grads == nullptr || (sgd && left == nullptr)) return kNoMemory;
  const SgdTaker<T> taker({step.rows, {}, step.numbers.hyper, step.numbers.rounding, table.dim}, left);
  LARGEOUT_RETURN_IF_ERROR(TreeSoftmaxGradToCuda(gradient_, tree, table, hidden, weights, grad_loss, tokens,
                                                 saved, scratch_bytes, d_hidden, rows, grads,
                                                 sgd ? &taker : nullptr, bias_grads, call_));
  return StepRowsCuda(step.rule, step.rows, table.dim, step.slots, left, touched, grads, step.numbers,
                      call_.stream);
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
