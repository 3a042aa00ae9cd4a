// One training step through a launcher, and what it should leave behind.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_STEP_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_STEP_H_

#include <algorithm>
#include <memory>

#include "gemm/test/every_product.h"
#include "tree_softmax/cuda/tree_softmax_plan.h"  // IsWide
#include "tree_softmax/test/tree_softmax_problem.h"

namespace largeout {

// Everything that a step leaves behind.
template <typename T, typename H = float>
struct StepResult {
  TreePaths paths;
  std::vector<float> loss, lse, probs, bias_grads;
  std::vector<H> d_hidden;
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

// How a step is made. No bit depends on it.
struct StepWay {
  int threads = 1;
  int64_t likely_pairs = 0;
  bool resume = false;  // the gradient goes by the plan of the loss, where that is enough
};

// A gradient's plan: that of the loss where it is resumed and that is enough, or what is found in the saved
// tensors.
template <typename T, typename Device>
TreeTouched PlanGradient(const typename Device::Plan& plan, const TreeArrays& tree, const TreeSaved& saved,
                         int64_t tokens, int64_t dim, bool resume, Device* gradient) {
  const bool saved_probs = saved.probs != nullptr, can = Device::template CanResume<T>(plan, saved_probs);
  CHECK_TRUE(can == (kOnCpu<Device> || sizeof(T) == sizeof(float) || saved_probs));
  if (resume && can) return gradient->Resume(plan);
  TreeTouched touched;
  CHECK_TRUE(gradient->template Check<T>(tree, saved, tokens, dim, &touched) == 0);
  return touched;
}

// scratch_bytes < 0: probabilities are saved between loss and gradient.
template <typename Device, typename T, typename H>
StepResult<T, H> Step(const Problem<T, H>& p, int64_t scratch_bytes, const StepWay& way = {}) {
  const ProblemOn<Device, T, H> on(p);
  const TreeArrays tree = on.arrays();
  auto loss_call = std::make_unique<TestCall<typename Device::Call>>(way.threads);
  TestCall<typename Device::Call> lasting, gradient_call(way.threads);
  StepResult<T, H> r;
  Device device(loss_call->get());
  CHECK_TRUE(device.FindPaths(tree, on.targets.get(), on.weights, p.tokens, p.dim, way.likely_pairs,
                              lasting.get().scratch, &r.paths) == 0);
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
  const typename Device::Plan plan = device.GradientPlan();
  loss_call.reset();  // the plan needs nothing of it
  Device backward(gradient_call.get());
  const TreeTouched touched = PlanGradient<T>(plan, tree, saved, p.tokens, p.dim, way.resume, &backward);
  CHECK_TRUE(touched.ok && touched.probs == r.paths.probs);
  const ArrayOf<Device, H> d_hidden(Unwritten<H>(p.tokens * p.dim));
  const ArrayOf<Device, float> bias_grads(Unwritten<float>(p.bias.empty() ? 0 : touched.rows));
  const ArrayOf<Device, int64_t> rows(Unwritten<int64_t>(touched.rows));
  const ArrayOf<Device, T> row_grads(Unwritten<T>(touched.rows * p.dim));
  CHECK_TRUE(backward.Gradient(tree, on.table, on.hidden.get(), on.weights, on.grad_loss.get(), p.tokens,
                               saved, scratch_bytes, d_hidden.get(), rows.get(), row_grads.get(),
                               p.bias.empty() ? nullptr : bias_grads.get()) == 0);
  r.d_hidden = d_hidden.Host(), r.rows = rows.Host();
  r.row_grads = row_grads.Host(), r.bias_grads = bias_grads.Host();
  return r;
}

// Whether a device that multiplies in bfloat16 does so at a node of so many pairs and children.
template <typename Device>
constexpr bool RoundsAt(int64_t pairs, int64_t children) {
  return kOnCpu<Device> ? ArePacked(pairs, children) : IsWide(pairs, children);
}

// From the truth, which knows nothing of rounded factors. Tensor cores take bfloat16 tables; beside them
// float32 hidden vectors lose 8 of 24 bits there (common/cuda/gemm/).
template <typename Device, typename T, typename H>
struct Tolerance {
  static constexpr bool kShort = sizeof(T) == 2, kCpu = kOnCpu<Device>;
  const bool rounds = MultipliesInBfloat16<Device, H>(), rough = rounds && !kShort;  // logits of rounded rows
  const double loss = rough ? 1e-2 : kCpu ? 3e-6 : kShort ? 5e-5 : 5e-6;
  const double bias = rough ? 1e-2 : kCpu ? 2e-5 : kShort ? 1e-4 : 3e-5;
  const double rows = rounds ? 1e-2 : kShort ? (kCpu ? 4e-3 : 5e-3) : bias;
  const double hidden = rounds ? 1e-2 : sizeof(H) == 2 ? 4e-3 : bias;
};

// Loss and gradients from the definition, in float64. (Small problems only.)
template <typename Device>
struct TreeTruth {
  // rounded: the factors of wide nodes are rounded as Device does it, and the gradients of their logits are
  // those of the probabilities that `r` has saved, where it has.
  template <typename T, typename H>
  TreeTruth(const Problem<T, H>& p, const StepResult<T, H>& r, bool rounded)
      : loss(p.tokens),
        d_hidden(p.tokens * p.dim),
        row_grads(p.arrays.rows * p.dim),
        bias_grads(p.arrays.rows),
        touched(p.arrays.rows) {
    const auto& starts = p.tree.node_start;
    std::vector<size_t> group_of(p.arrays.nodes);
    std::vector<int64_t> group_probs;  // where the probabilities of a group begin
    int64_t probs = 0;
    for (size_t g = 0; g < r.group_node.size(); ++g) {
      const int32_t node = r.group_node[g], pairs = r.group_start[g + 1] - r.group_start[g];
      group_of[node] = g;
      group_probs.push_back(probs);
      probs += int64_t{pairs} * (starts[node + 1] - starts[node]);
    }
    for (int64_t t = 0; t < p.tokens; ++t) {
      const float weight = p.weights.empty() ? 1.f : p.weights[t], scale = p.grad_loss[t] * weight;
      for (int64_t row = weight == 0.f ? -1 : p.arrays.class_row[p.targets[t]]; row >= 0;) {
        const int64_t node = std::upper_bound(starts.begin(), starts.end(), row) - starts.begin() - 1;
        const int64_t first = starts[node], children = starts[node + 1] - first;
        const size_t group = group_of[node];
        const auto begin = r.pair_token.begin() + r.group_start[group],
                   end = r.pair_token.begin() + r.group_start[group + 1];
        const bool short_factors = rounded && RoundsAt<Device>(end - begin, children);
        const int64_t prob = group_probs[group] + (std::lower_bound(begin, end, t) - begin) * children;
        const std::vector<double> log_probs = NodeLogProbs(p, node, t, short_factors);
        loss[t] -= weight * log_probs[row - first];
        for (int64_t i = 0; i < children; ++i) {
          const int64_t at = first + i;
          const double g = (std::exp(log_probs[i]) - (at == row)) * weight * p.grad_loss[t];
          double factor = g;
          if (short_factors && !r.probs.empty())
            factor = Factor((r.probs[prob + i] - (at == row ? 1.f : 0.f)) * scale, true);
          touched[at] = 1;
          bias_grads[at] += g;
          for (int64_t k = 0; k < p.dim; ++k) {
            d_hidden[t * p.dim + k] += factor * Factor(p.table[at * p.dim + k], short_factors);
            row_grads[at * p.dim + k] += factor * ToFloat(p.hidden[t * p.dim + k]);
          }
        }
        row = p.arrays.node_row[node];
      }
    }
  }

  // Calls check(index in r.rows, row) for the rows that the batch touches, and checks that r.rows has them.
  template <typename Check>
  void ForEachRow(const std::vector<int64_t>& rows, const Check& check) const {
    size_t at = 0;
    for (int64_t row = 0; row < static_cast<int64_t>(touched.size()); ++row) {
      if (!touched[row]) continue;
      CHECK_TRUE(at < rows.size() && rows[at] == row);
      if (at >= rows.size()) return;
      check(at++, row);
    }
    CHECK_TRUE(at == rows.size());
  }

  std::vector<double> loss, d_hidden, row_grads, bias_grads;
  std::vector<char> touched;
};

template <typename Device, typename T, typename H>
void CheckAgainstTruth(const Problem<T, H>& p, const StepResult<T, H>& r) {
  const Tolerance<Device, T, H> tolerance;
  const TreeTruth<Device> want(p, r, false);
  for (int64_t t = 0; t < p.tokens; ++t) CHECK_CLOSE(r.loss[t], want.loss[t], tolerance.loss);
  for (int64_t i = 0; i < p.tokens * p.dim; ++i)
    CHECK_CLOSE(ToFloat(r.d_hidden[i]), want.d_hidden[i], tolerance.hidden);
  want.ForEachRow(r.rows, [&](size_t at, int64_t row) {
    for (int64_t k = 0; k < p.dim; ++k)
      CHECK_CLOSE(ToFloat(r.row_grads[at * p.dim + k]), want.row_grads[row * p.dim + k], tolerance.rows);
    if (!p.bias.empty()) CHECK_CLOSE(r.bias_grads[at], want.bias_grads[row], tolerance.bias);
  });
}

// A float32 sum, or what is left of it in bfloat16: rounded once.
template <typename X>
void CheckSum(X got, double want, double tolerance) {
  const double off = tolerance * (1.0 + std::fabs(want));
  X low, high;
  FromFloat(static_cast<float>(want - off), &low);
  FromFloat(static_cast<float>(want + off), &high);
  CHECK_TRUE(ToFloat(got) >= ToFloat(low) && ToFloat(got) <= ToFloat(high));
}

// Against sums of products of rounded factors. The gradients of logits are known where probabilities are
// saved; those of biases are sums of what is not rounded.
template <typename Device, typename T, typename H>
void CheckAgainstRounded(const Problem<T, H>& p, const StepResult<T, H>& r) {
  constexpr double kTolerance = 3e-5;
  const bool saved = !r.probs.empty();
  const TreeTruth<Device> want(p, r, true);
  for (int64_t t = 0; t < p.tokens; ++t) CHECK_CLOSE(r.loss[t], want.loss[t], kTolerance);
  for (int64_t i = 0; i < p.tokens * p.dim && saved; ++i)
    CheckSum(r.d_hidden[i], want.d_hidden[i], kTolerance);
  want.ForEachRow(r.rows, [&](size_t at, int64_t row) {
    for (int64_t k = 0; k < p.dim && saved; ++k)
      CheckSum(r.row_grads[at * p.dim + k], want.row_grads[row * p.dim + k], kTolerance);
    if (!p.bias.empty()) CHECK_CLOSE(r.bias_grads[at], want.bias_grads[row], kTolerance);
  });
}

template <typename X>
void CheckAllClose(const std::vector<X>& got, const std::vector<X>& want, double tolerance,
                   const char* what) {
  CHECK_TRUE(got.size() == want.size());
  double worst = 0.0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double size = std::fabs(ToFloat(want[i]));
    const double error = std::fabs(double{ToFloat(got[i])} - ToFloat(want[i])) / (1.0 + size);
    if (!(error <= worst)) worst = error;  // NaN stays
  }
  if (!(worst <= tolerance)) std::printf("  %s: largest difference from the CPU %.3g\n", what, worst);
  CHECK_TRUE(worst <= tolerance);
}

template <typename Device, typename T, typename H>
void CheckAgainstCpu(const StepResult<T, H>& r, const StepResult<T, H>& want) {
  const Tolerance<Device, T, H> tolerance;
  CHECK_TRUE(r.paths.status == TreeStatus::kOk && want.paths.status == TreeStatus::kOk);
  CHECK_TRUE(r.pair_token == want.pair_token && r.pair_row == want.pair_row);
  CHECK_TRUE(r.group_node == want.group_node && r.group_start == want.group_start && r.rows == want.rows);
  CheckAllClose(r.loss, want.loss, tolerance.loss, "loss");
  CheckAllClose(r.lse, want.lse, tolerance.loss, "lse");
  CheckAllClose(r.probs, want.probs, tolerance.loss, "probs");
  CheckAllClose(r.d_hidden, want.d_hidden, tolerance.hidden, "d_hidden");
  CheckAllClose(r.bias_grads, want.bias_grads, tolerance.bias, "bias_grads");
}

// In every way it must leave the same bits: with 1 thread and with 3; where more, fewer or as many pairs are
// found as were likely; where the gradient goes by the plan of the loss. Probabilities are saved; computed
// again in one chunk; in many.
template <typename Device, typename T, typename H>
void CheckProblem(const Problem<T, H>& p) {
  ForEachProduct<Device, H>([&] {
    for (const int64_t scratch : {int64_t{-1}, int64_t{1} << 28, int64_t{20000}}) {
      const StepResult<T, H> r = Step<Device>(p, scratch);
      const int64_t pairs = r.paths.pairs, likely = scratch < 0        ? pairs + 37
                                                    : scratch == 20000 ? pairs - 1
                                                                       : pairs;
      CHECK_TRUE((r == Step<Device>(p, scratch, {3, likely, true})));
      CheckAgainstTruth<Device>(p, r);
      if (MultipliesInBfloat16<Device, H>()) CheckAgainstRounded<Device>(p, r);
      if (!kOnCpu<Device>) CheckAgainstCpu<Device>(r, Step<TreeSoftmaxCpu>(p, scratch));
    }
  });
}

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_STEP_H_
