// What ops and tests call on GPUs: the launchers of tree_softmax_cuda.h behind the methods of
// tree_softmax_cpu.h, which says what they do. FindPaths waits for the stream once where likely_pairs are
// enough, otherwise twice (and once more for a bad target); Check once, Resume never, TopK twice.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_H_

#include <type_traits>

#include "tree_softmax/cuda/tree_softmax_cuda.h"

namespace largeout {

class TreeSoftmaxGpu {
 public:
  using Call = GpuCall;
  using Plan = TreeGradPlan;
  explicit TreeSoftmaxGpu(const Call& call) : stream_(call.stream), scratch_(call.scratch) {}

  template <typename Id>
  int FindPaths(const TreeArrays& tree, const Id* targets, const float* weights, int64_t tokens, int64_t dim,
                int64_t likely_pairs, Scratch* lasting, TreePaths* paths) {
    LARGEOUT_RETURN_IF_ERROR(PlanTreeLossCuda(tree, targets, weights, tokens, dim, likely_pairs, scratch_,
                                              lasting, stream_, &loss_));
    *paths = {loss_.status, loss_.bad_position, 0, loss_.pairs, loss_.groups, loss_.probs};
    if (loss_.bad_position < 0) return 0;
    Id target;
    LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(targets + loss_.bad_position, sizeof(target), &target, stream_));
    paths->bad_target = static_cast<int64_t>(target);
    return 0;
  }

  template <typename T, typename H>
  int Loss(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden, const float* weights,
           int64_t tokens, const TreeLossOutputs& out, int64_t /*scratch_bytes*/) {
    return TreeSoftmaxLossCuda(loss_, tree, table, hidden, weights, tokens, out, scratch_, stream_);
  }

  const Plan& GradientPlan() const { return loss_.gradient; }

  template <typename T>
  static bool CanResume(const Plan& plan, bool saved_probs) {
    return plan.ok && (saved_probs || !kRoundRows<T>);
  }

  TreeTouched Resume(const Plan& plan) {
    gradient_ = plan;
    return TouchedBy(plan);
  }

  template <typename T>
  int Check(const TreeArrays& tree, const TreeSaved& saved, int64_t tokens, int64_t dim,
            TreeTouched* touched) {
    LARGEOUT_RETURN_IF_ERROR(
        PlanTreeGradCuda(tree, saved, tokens, dim, kRoundRows<T>, scratch_, stream_, &gradient_));
    *touched = TouchedBy(gradient_);
    return 0;
  }

  template <typename T, typename H>
  int Gradient(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden, const float* weights,
               const float* grad_loss, int64_t tokens, const TreeSaved& saved, int64_t scratch_bytes,
               H* d_hidden, int64_t* rows, T* row_grads, float* bias_grads) {
    const int64_t n = tokens * table.dim;
    float* gradient;
    LARGEOUT_RETURN_IF_ERROR(FloatsFor(d_hidden, n, &gradient));
    LARGEOUT_RETURN_IF_ERROR(TreeSoftmaxGradCuda(gradient_, tree, table, hidden, weights, grad_loss, tokens,
                                                 saved, scratch_bytes, gradient, rows, row_grads, bias_grads,
                                                 scratch_, stream_));
    if constexpr (!std::is_same<H, float>::value) return FromFloatsCuda(gradient, n, d_hidden, stream_);
    return 0;
  }

  template <typename T, typename H, typename Id>
  int TopK(const TreeArrays& tree, const int32_t* row_child, const TreeTable<T>& table, const H* hidden,
           int64_t queries, int64_t k, float* log_probs, Id* ids, bool* ok) {
    const float* floats;
    LARGEOUT_RETURN_IF_ERROR(FloatsCuda(hidden, queries * table.dim, scratch_, stream_, &floats));
    return TreeTopKCuda(tree, row_child, table, floats, queries, k, log_probs, ids, scratch_, stream_, ok);
  }

 private:
  template <typename T>
  static constexpr bool kRoundRows = !std::is_same<T, float>::value;
  static TreeTouched TouchedBy(const Plan& plan) { return {plan.ok, plan.work.rows, plan.work.probs}; }

  int FloatsFor(float* out, int64_t, float** floats) {
    *floats = out;
    return 0;
  }
  int FloatsFor(bfloat16*, int64_t n, float** floats) {
    *floats = scratch_->Take<float>(n);
    return *floats == nullptr ? kNoMemory : 0;
  }

  const GpuStream stream_;
  Scratch* const scratch_;
  TreeLossPlan loss_;
  TreeGradPlan gradient_;
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_GPU_H_
