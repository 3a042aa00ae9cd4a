// One training step through a facade, and what it should leave behind.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_STEP_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_STEP_H_

#include <algorithm>

#include "tree_softmax/test/tree_softmax_problem.h"

namespace largeout {

// Everything that a step leaves behind.
template <typename T>
struct StepResult {
  TreePaths paths;
  std::vector<float> loss, lse, probs, d_hidden, bias_grads;
  std::vector<int32_t> pair_token, pair_row, group_node, group_start;
  std::vector<int64_t> rows;
  std::vector<T> row_grads;
  bool operator==(const StepResult& o) const {
    return SameBits(loss, o.loss) && SameBits(lse, o.lse) && SameBits(probs, o.probs) &&
           SameBits(d_hidden, o.d_hidden) && SameBits(bias_grads, o.bias_grads) &&
           SameBits(row_grads, o.row_grads) && rows == o.rows && pair_token == o.pair_token &&
           pair_row == o.pair_row && group_node == o.group_node && group_start == o.group_start;
  }
};

// scratch_bytes < 0: probabilities are saved between loss and gradient.
template <typename Device, typename T>
StepResult<T> Step(const Problem<T>& p, int64_t scratch_bytes, int threads = 1) {
  const ProblemOn<Device, T> on(p);
  const TreeArrays tree = on.arrays();
  TestCall<typename Device::Call> loss_call(threads), gradient_call(threads);
  StepResult<T> r;
  Device device(loss_call.get());
  CHECK_TRUE(device.FindPaths(tree, on.targets.get(), on.weights, p.tokens, p.dim, &r.paths) == 0);
  if (r.paths.status != TreeStatus::kOk) return r;
  const int64_t pairs = r.paths.pairs, groups = r.paths.groups;
  const ArrayOf<Device, float> loss(Unwritten<float>(p.tokens)), lse(Unwritten<float>(pairs)),
      probs(Unwritten<float>(scratch_bytes < 0 ? r.paths.probs : 0));
  const ArrayOf<Device, int32_t> pair_token(Unwritten<int32_t>(pairs)), pair_row(Unwritten<int32_t>(pairs)),
      group_node(Unwritten<int32_t>(groups)), group_start(Unwritten<int32_t>(groups + 1));
  float* saved_probs = scratch_bytes < 0 ? probs.get() : nullptr;
  CHECK_TRUE(device.Loss(tree, on.table, on.hidden.get(), on.weights, p.tokens,
                         {loss.get(), pair_token.get(), pair_row.get(), group_node.get(), group_start.get(),
                          lse.get(), saved_probs},
                         scratch_bytes) == 0);
  r.loss = loss.Host(), r.lse = lse.Host(), r.probs = probs.Host();
  r.pair_token = pair_token.Host(), r.pair_row = pair_row.Host();
  r.group_node = group_node.Host(), r.group_start = group_start.Host();

  const TreeSaved saved{pair_token.get(),
                        pair_row.get(),
                        group_node.get(),
                        group_start.get(),
                        lse.get(),
                        saved_probs,
                        pairs,
                        groups};
  Device backward(gradient_call.get());
  TreeTouched touched;
  CHECK_TRUE(backward.template Check<T>(tree, saved, p.tokens, p.dim, &touched) == 0);
  CHECK_TRUE(touched.ok && touched.probs == r.paths.probs);
  const ArrayOf<Device, float> d_hidden(Unwritten<float>(p.tokens * p.dim)),
      bias_grads(Unwritten<float>(p.bias.empty() ? 0 : touched.rows));
  const ArrayOf<Device, int64_t> rows(Unwritten<int64_t>(touched.rows));
  const ArrayOf<Device, T> row_grads(Unwritten<T>(touched.rows * p.dim));
  CHECK_TRUE(backward.Gradient(tree, on.table, on.hidden.get(), on.weights, on.grad_loss.get(), p.tokens,
                               saved, scratch_bytes, d_hidden.get(), rows.get(), row_grads.get(),
                               p.bias.empty() ? nullptr : bias_grads.get()) == 0);
  r.d_hidden = d_hidden.Host(), r.rows = rows.Host();
  r.row_grads = row_grads.Host(), r.bias_grads = bias_grads.Host();
  return r;
}

// Tensor cores take bfloat16 tables; float32 operands lose 8 of 24 bits there (common/cuda/gemm/).
template <typename Device, typename T>
struct Tolerance {
  static constexpr bool kShort = sizeof(T) == 2;
  static constexpr double kLoss = kOnCpu<Device> ? 3e-6 : kShort ? 5e-5 : 5e-6;
  static constexpr double kGradient = kOnCpu<Device> ? 2e-5 : kShort ? 1e-4 : 3e-5;
  static constexpr double kRows = kShort ? (kOnCpu<Device> ? 4e-3 : 5e-3) : kGradient;
};

// Loss and gradients from the definition, in float64. (Small problems only.)
template <typename Device, typename T>
void CheckAgainstTruth(const Problem<T>& p, const StepResult<T>& r) {
  using Tolerance = Tolerance<Device, T>;
  std::vector<double> d_hidden(p.tokens * p.dim), row_grads(p.arrays.rows * p.dim), bias_grads(p.arrays.rows);
  std::vector<char> touched(p.arrays.rows);
  for (int64_t t = 0; t < p.tokens; ++t) {
    const double weight = p.weights.empty() ? 1.0 : p.weights[t];
    double loss = 0.0;
    for (int64_t row = weight == 0.0 ? -1 : p.arrays.class_row[p.targets[t]]; row >= 0;) {
      const auto& starts = p.tree.node_start;
      const int64_t node = std::upper_bound(starts.begin(), starts.end(), row) - starts.begin() - 1;
      const std::vector<double> log_probs = NodeLogProbs(p, node, t);
      const int64_t first = starts[node];
      loss -= log_probs[row - first];
      for (int64_t i = first; i < starts[node + 1]; ++i) {
        const double g = (std::exp(log_probs[i - first]) - (i == row)) * weight * p.grad_loss[t];
        touched[i] = 1;
        bias_grads[i] += g;
        for (int64_t k = 0; k < p.dim; ++k) {
          d_hidden[t * p.dim + k] += g * ToFloat(p.table[i * p.dim + k]);
          row_grads[i * p.dim + k] += g * p.hidden[t * p.dim + k];
        }
      }
      row = p.arrays.node_row[node];
    }
    CHECK_CLOSE(r.loss[t], loss * weight, Tolerance::kLoss);
  }
  for (int64_t i = 0; i < p.tokens * p.dim; ++i)
    CHECK_CLOSE(r.d_hidden[i], d_hidden[i], Tolerance::kGradient);
  size_t at = 0;
  for (int64_t row = 0; row < p.arrays.rows; ++row) {
    if (!touched[row]) continue;
    CHECK_TRUE(at < r.rows.size() && r.rows[at] == row);
    if (at >= r.rows.size()) return;
    for (int64_t k = 0; k < p.dim; ++k)
      CHECK_CLOSE(ToFloat(r.row_grads[at * p.dim + k]), row_grads[row * p.dim + k], Tolerance::kRows);
    if (!p.bias.empty()) CHECK_CLOSE(r.bias_grads[at], bias_grads[row], Tolerance::kGradient);
    ++at;
  }
  CHECK_TRUE(at == r.rows.size());
}

inline void CheckAllClose(const std::vector<float>& got, const std::vector<float>& want, double tolerance,
                          const char* what) {
  CHECK_TRUE(got.size() == want.size());
  double worst = 0.0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double error = std::fabs(double{got[i]} - want[i]) / (1.0 + std::fabs(want[i]));
    if (!(error <= worst)) worst = error;  // NaN stays
  }
  if (!(worst <= tolerance)) std::printf("  %s: largest difference from the CPU %.3g\n", what, worst);
  CHECK_TRUE(worst <= tolerance);
}

template <typename Device, typename T>
void CheckAgainstCpu(const StepResult<T>& r, const StepResult<T>& want) {
  using Tolerance = Tolerance<Device, T>;
  CHECK_TRUE(r.paths.status == TreeStatus::kOk && want.paths.status == TreeStatus::kOk);
  CHECK_TRUE(r.pair_token == want.pair_token && r.pair_row == want.pair_row);
  CHECK_TRUE(r.group_node == want.group_node && r.group_start == want.group_start && r.rows == want.rows);
  CheckAllClose(r.loss, want.loss, Tolerance::kLoss, "loss");
  CheckAllClose(r.lse, want.lse, Tolerance::kLoss, "lse");
  CheckAllClose(r.probs, want.probs, Tolerance::kLoss, "probs");
  CheckAllClose(r.d_hidden, want.d_hidden, Tolerance::kGradient, "d_hidden");
  CheckAllClose(r.bias_grads, want.bias_grads, Tolerance::kGradient, "bias_grads");
}

// With 1 thread and with 3 (on a GPU: twice) it must leave the same bits. Probabilities are saved; computed
// anew in one chunk; in many.
template <typename Device, typename T>
void CheckProblem(const Problem<T>& p) {
  ForEachLevel<Device>([&] {
    for (const int64_t scratch : {int64_t{-1}, int64_t{1} << 28, int64_t{20000}}) {
      const StepResult<T> r = Step<Device>(p, scratch);
      CHECK_TRUE((r == Step<Device>(p, scratch, 3)));
      CheckAgainstTruth<Device>(p, r);
      if (!kOnCpu<Device>) CheckAgainstCpu<Device>(r, Step<TreeSoftmaxCpu>(p, scratch));
    }
  });
}

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_STEP_H_
