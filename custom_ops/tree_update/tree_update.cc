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

template <>
template <typename T, typename H>
int TreeUpdateCpu::Update(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden,
                          const float* weights, const float* grad_loss, int64_t tokens,
                          const TreeSaved& saved, int64_t scratch_bytes, int64_t /*touched*/,
                          const TreeStep<T>& step, H* d_hidden, int64_t* rows, float* bias_grads) {
  const RowUpdater<T, T> updater(step.rule, step.rows, table.dim, step.slots, step.numbers);
  StepTaker<T> taker(updater, table.dim);
  return TreeSoftmaxGradTo<T>(tree, table, hidden, weights, grad_loss, tokens, saved, scratch_bytes, d_hidden,
                              rows, &taker, bias_grads, call_);
}

#define LARGEOUT_TREE_UPDATE(T, H)                                                                         \
  template int TreeUpdateCpu::Update<T, H>(const TreeArrays&, const TreeTable<T>&, const H*, const float*, \
                                           const float*, int64_t, const TreeSaved&, int64_t, int64_t,      \
                                           const TreeStep<T>&, H*, int64_t*, float*);
LARGEOUT_TREE_UPDATE(float, float)
LARGEOUT_TREE_UPDATE(float, bfloat16)
LARGEOUT_TREE_UPDATE(bfloat16, float)
LARGEOUT_TREE_UPDATE(bfloat16, bfloat16)

}  // namespace largeout
