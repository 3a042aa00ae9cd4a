#include "tree_update/tree_update.h"

#include <algorithm>

namespace largeout {
namespace {

// Gradients go straight into the step.
template <typename T>
class StepTaker final : public TreeRowTaker<T> {
 public:
  explicit StepTaker(const RowUpdater<T, T>& updater, int64_t dim) : updater_(updater), dim_(dim) {}
  void Take(int64_t first, int64_t n, int64_t next, const T* grads) override {
    constexpr int64_t kRows = 128;
    int64_t rows[2 * kRows];
    for (int64_t at = 0; at < n; at += kRows) {
      const int64_t now = std::min(kRows, n - at), after = std::min(kRows, n + next - at - now);
      for (int64_t i = 0; i < now + after; ++i) rows[i] = first + at + i;
      updater_.Update(rows, now, after, grads + at * dim_);
    }
  }

 private:
  const RowUpdater<T, T>& updater_;
  const int64_t dim_;
};

}  // namespace

template <typename T>
void TreeUpdate(const TreeArrays& tree, const TreeTable<T>& table, const float* hidden, const float* weights,
                const float* grad_loss, int64_t tokens, const TreeSaved& saved, int64_t scratch_bytes,
                const TreeStep<T>& step, float* d_hidden, int64_t* rows, float* bias_grads,
                Parallel* parallel) {
  const RowUpdater<T, T> updater(step.rule, step.rows, table.dim, step.slots, step.hyper);
  StepTaker<T> taker(updater, table.dim);
  TreeSoftmaxGradTo<T>(tree, table, hidden, weights, grad_loss, tokens, saved, scratch_bytes, d_hidden, rows,
                       &taker, bias_grads, parallel);
}

#define LARGEOUT_TREE_UPDATE(T)                                                                             \
  template void TreeUpdate<T>(const TreeArrays&, const TreeTable<T>&, const float*, const float*,           \
                              const float*, int64_t, const TreeSaved&, int64_t, const TreeStep<T>&, float*, \
                              int64_t*, float*, Parallel*);
LARGEOUT_TREE_UPDATE(float)
LARGEOUT_TREE_UPDATE(bfloat16)

}  // namespace largeout
