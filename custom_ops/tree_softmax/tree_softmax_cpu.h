// What ops and tests call on CPUs: the kernels of tree_softmax.h behind the methods that
// cuda/tree_softmax_gpu.h has for GPUs. One object is one call: of FindPaths and Loss, of Resume or Check and
// then Gradient, or of TopK.
//
// H is the type of hidden vectors, T that of the table: float or bfloat16. Arrays lie on the device. Methods
// return 0 or an error (common/scratch.h).
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CPU_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CPU_H_

#include <algorithm>
#include <type_traits>
#include <vector>

#include "common/huge_pages.h"
#include "common/scratch.h"
#include "tree_softmax/tree_softmax.h"

namespace largeout {

class TreeSoftmaxCpu {
 public:
  using Call = CpuCall;
  using Plan = TreeTouched;
  explicit TreeSoftmaxCpu(const Call& call) : parallel_(call.parallel), scratch_(call.scratch) {}

  // Finds the paths of the targets, which Loss then follows; their sizes, or what is wrong, in *paths.
  // likely_pairs: how many pairs there will be, or a little more; 0 if nobody knows. No result depends on it.
  // What GradientPlan gives lies in memory of `lasting`.
  template <typename Id>
  int FindPaths(const TreeArrays& tree, const Id* targets, const float* weights, int64_t tokens,
                int64_t /*dim*/, int64_t /*likely_pairs*/, Scratch* /*lasting*/, TreePaths* paths) {
    paths->status = BuildTreePairs(tree, targets, weights, tokens, parallel_, &pairs_);
    paths->bad_position = pairs_.bad_position;
    if (paths->bad_position >= 0) paths->bad_target = static_cast<int64_t>(targets[paths->bad_position]);
    paths->pairs = static_cast<int64_t>(pairs_.token.size());
    paths->groups = static_cast<int64_t>(pairs_.group_node.size());
    paths->probs = pairs_.prob_count;
    return 0;
  }

  // scratch_bytes bounds what is held of probabilities that are not saved.
  template <typename T, typename H>
  int Loss(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden, const float* weights,
           int64_t tokens, const TreeLossOutputs& out, int64_t /*scratch_bytes*/) {
    if (out.probs != nullptr) AdviseHugePages(out.probs, pairs_.prob_count * sizeof(float));
    const float* floats;
    LARGEOUT_RETURN_IF_ERROR(Floats(hidden, tokens * table.dim, &floats));
    if (out.group_start != nullptr) {
      std::copy(pairs_.token.begin(), pairs_.token.end(), out.pair_token);
      std::copy(pairs_.row.begin(), pairs_.row.end(), out.pair_row);
      std::copy(pairs_.group_node.begin(), pairs_.group_node.end(), out.group_node);
      std::copy(pairs_.group_start.begin(), pairs_.group_start.end(), out.group_start);
    }
    TreeSoftmaxLoss(tree, TableFor<H>(table), floats, weights, tokens, pairs_, out.loss, out.pair_lse,
                    out.probs, parallel_);
    return 0;
  }

  // After Loss: what it found that the gradient needs as well.
  Plan GradientPlan() const { return {pairs_.ordered, pairs_.touched_rows, pairs_.prob_count}; }

  // Whether Resume may take the place of Check, for a table of T; whether probabilities were saved.
  template <typename T>
  static bool CanResume(const Plan& plan, bool /*saved_probs*/) {
    return plan.ok;
  }

  // Goes on from the plan of the loss that left the saved tensors, for the same tree, tokens and dim.
  TreeTouched Resume(const Plan& plan) { return plan; }

  // As CheckTreeSaved, for a table of T.
  template <typename T>
  int Check(const TreeArrays& tree, const TreeSaved& saved, int64_t tokens, int64_t /*dim*/,
            TreeTouched* touched) {
    touched->ok = CheckTreeSaved(tree, saved, tokens, &touched->rows, &touched->probs);
    return 0;
  }

  // As TreeSoftmaxGrad, after Resume, or for what Check found to be right.
  template <typename T, typename H>
  int Gradient(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden, const float* weights,
               const float* grad_loss, int64_t tokens, const TreeSaved& saved, int64_t scratch_bytes,
               H* d_hidden, int64_t* rows, T* row_grads, float* bias_grads) {
    return WithFloats(hidden, tokens * table.dim, d_hidden, [&](const float* floats, float* gradient) {
      TreeSoftmaxGrad(tree, TableFor<H>(table), floats, weights, grad_loss, tokens, saved, scratch_bytes,
                      gradient, rows, row_grads, bias_grads, parallel_);
      return 0;
    });
  }

  // As TreeTopK; *ok is its answer.
  template <typename T, typename H, typename Id>
  int TopK(const TreeArrays& tree, const int32_t* row_child, const TreeTable<T>& table, const H* hidden,
           int64_t queries, int64_t k, float* log_probs, Id* ids, bool* ok) {
    const float* floats;
    LARGEOUT_RETURN_IF_ERROR(Floats(hidden, queries * table.dim, &floats));
    *ok = TreeTopK(tree, row_child, table, floats, queries, k, log_probs, ids, parallel_);
    return 0;
  }

 protected:
  // The table beside hidden vectors of type H.
  template <typename H, typename T>
  static TreeTable<T> TableFor(TreeTable<T> table) {
    table.in_bfloat16 = std::is_same<H, bfloat16>::value;
    return table;
  }

  // What body(hidden vectors in float32, where their gradients belong) returns.
  template <typename H, typename Body>
  int WithFloats(const H* hidden, int64_t n, H* d_hidden, const Body& body) {
    const float* floats;
    float* gradient;
    LARGEOUT_RETURN_IF_ERROR(Floats(hidden, n, &floats));
    LARGEOUT_RETURN_IF_ERROR(FloatsFor(d_hidden, n, &gradient));
    LARGEOUT_RETURN_IF_ERROR(body(floats, gradient));
    if constexpr (!std::is_same<H, float>::value) FromFloats(gradient, n, d_hidden, parallel_);
    return 0;
  }

 private:
  // Vectors as float32: themselves, or a copy.
  int Floats(const float* in, int64_t, const float** out) {
    *out = in;
    return 0;
  }
  int Floats(const bfloat16* in, int64_t n, const float** out) {
    float* copy = scratch_->Take<float>(n);
    if (copy == nullptr) return kNoMemory;
    ToFloats(in, n, copy, parallel_);
    *out = copy;
    return 0;
  }
  // Where float32 vectors are written that become `out`: there, or in scratch memory.
  int FloatsFor(float* out, int64_t, float** floats) {
    *floats = out;
    return 0;
  }
  int FloatsFor(bfloat16*, int64_t n, float** floats) {
    *floats = scratch_->Take<float>(n);
    return *floats == nullptr ? kNoMemory : 0;
  }

  Parallel* parallel_;
  Scratch* scratch_;
  TreePairs pairs_;
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CPU_H_
