// Tests of TreeUpdateCpu and TreeUpdateGpu: they give what the gradient followed by the row update gives.
#ifndef LARGEOUT_TREE_UPDATE_TREE_UPDATE_CASES_H_
#define LARGEOUT_TREE_UPDATE_TREE_UPDATE_CASES_H_

#include <utility>
#include <vector>

#include "row_update/test/row_update_cases.h"
#include "tree_softmax/test/tree_softmax_step.h"
#include "tree_update/tree_update.h"

namespace largeout {

template <typename T, typename H = float>
struct TreeStepProblem {
  TreeStepProblem(Problem<T, H> p, UpdateRule rule, float decay, uint64_t seed)
      : p(std::move(p)), rule(rule), hyper(HyperOf(rule, decay)) {
    if (seed % 2 == 1) rounding = RoundingOf<T>(seed);
    Random random(seed);
    const UpdateRuleInfo& info = kUpdateRuleInfo[static_cast<int>(rule)];
    const int64_t rows = this->p.arrays.rows, size = info.slot_per_row ? rows : rows * this->p.dim;
    start.table = this->p.table;
    for (int k = 0; k < info.slots; ++k) start.slots[k] = Make<float>(size, &random, 3.f);
  }
  Problem<T, H> p;
  UpdateRule rule;
  std::vector<float> hyper;
  std::vector<int64_t> rounding;
  UpdateState<T> start;
};

// What a step leaves: the table and its slots, and what it returns.
template <typename T, typename H>
struct TreeStepResult {
  UpdateState<T> state;
  std::vector<H> d_hidden;
  std::vector<float> bias_grads;
  std::vector<int64_t> rows;
  bool operator==(const TreeStepResult& o) const {
    return state == o.state && rows == o.rows && SameBits(d_hidden, o.d_hidden) &&
           SameBits(bias_grads, o.bias_grads);
  }
};

// scratch_bytes < 0: probabilities are saved between loss and gradient.
template <typename Device, typename T, typename H>
TreeStepResult<T, H> InOnePass(const TreeStepProblem<T, H>& s, int64_t scratch_bytes,
                               const StepWay& way = {}) {
  const Problem<T, H>& p = s.p;
  const ProblemOn<Device, T, H> on(p);
  const TreeArrays tree = on.arrays();
  TestCall<typename Device::Call> loss_call(way.threads), step_call(way.threads);
  TreePaths paths;
  Device forward(loss_call.get());
  CHECK_TRUE(forward.FindPaths(tree, on.targets.get(), on.weights, p.tokens, p.dim, way.likely_pairs,
                               loss_call.get().scratch, &paths) == 0);
  const ArrayOf<Device, float> loss(p.tokens), lse(paths.pairs), probs(scratch_bytes < 0 ? paths.probs : 0);
  const ArrayOf<Device, int32_t> token(paths.pairs), row(paths.pairs), node(paths.groups),
      start(paths.groups + 1);
  float* kept = scratch_bytes < 0 ? probs.get() : nullptr;
  CHECK_TRUE(forward.Loss(tree, on.table, on.hidden.get(), on.weights, p.tokens,
                          {loss.get(), token.get(), row.get(), node.get(), start.get(), lse.get(), kept},
                          scratch_bytes) == 0);
  const TreeSaved saved{token.get(), row.get(), node.get(),  start.get(),
                        lse.get(),   kept,      paths.pairs, paths.groups};
  Device backward(step_call.get());
  const TreeTouched touched =
      PlanGradient<T>(forward.GradientPlan(), tree, saved, p.tokens, p.dim, way.resume, &backward);
  const ArrayOf<Device, T> table(s.start.table);
  const ArrayOf<Device, float> slot0(s.start.slots[0]), slot1(s.start.slots[1]);
  const NumbersOn<Device> numbers(s.hyper, s.rounding);
  float* slots[] = {slot0.get(), slot1.get()};
  const ArrayOf<Device, H> d_hidden(Unwritten<H>(p.tokens * p.dim));
  const ArrayOf<Device, float> bias_grads(Unwritten<float>(p.bias.empty() ? 0 : touched.rows));
  const ArrayOf<Device, int64_t> rows(Unwritten<int64_t>(touched.rows));
  const TreeStep<T> step{s.rule, table.get(), slots, numbers.get()};
  CHECK_TRUE(backward.Update(tree, TreeTable<T>{table.get(), on.table.bias, p.dim}, on.hidden.get(),
                             on.weights, on.grad_loss.get(), p.tokens, saved, scratch_bytes, touched.rows,
                             step, d_hidden.get(), touched.rows == 0 ? nullptr : rows.get(),
                             p.bias.empty() ? nullptr : bias_grads.get()) == 0);
  return {{table.Host(), {slot0.Host(), slot1.Host()}}, d_hidden.Host(), bias_grads.Host(), rows.Host()};
}

// The same by Gradient (a launcher for trees) and then Updater (one for row updates).
template <typename Gradient, typename Updater, typename T, typename H>
TreeStepResult<T, H> InTwoPasses(const TreeStepProblem<T, H>& s, int64_t scratch_bytes) {
  const StepResult<T, H> found = Step<Gradient>(s.p, scratch_bytes);
  TreeStepResult<T, H> r{s.start, found.d_hidden, found.bias_grads, found.rows};
  const BadIndex bad = Update<Updater>(s.rule, s.p.arrays.rows, s.p.dim, found.rows, found.row_grads, s.hyper,
                                       &r.state, 1, s.rounding);
  CHECK_TRUE(bad.position == -1);
  return r;
}

// Gradient, Updater: of the same device as Device.
template <typename Device, typename Gradient, typename Updater, typename T, typename H>
void CheckTreeUpdate(const TreeStepProblem<T, H>& s) {
  for (const int64_t scratch : {int64_t{-1}, int64_t{1} << 28, int64_t{20000}}) {
    const TreeStepResult<T, H> want = InTwoPasses<Gradient, Updater>(s, scratch);
    for (const StepWay& way : {StepWay{1, 0, false}, StepWay{4, 1 << 16, true}})
      CHECK_TRUE((InOnePass<Device>(s, scratch, way) == want));
  }
}

template <typename Device, typename Gradient, typename Updater>
void EveryRuleOnATree() {
  uint64_t seed = 0;
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    Random random(++seed);
    for (const int64_t dim : {1, 17, 64}) {
      if (kEmulated && dim == 1) continue;
      const float decay = dim == 17 ? 0.01f : 0.f;
      CheckTreeUpdate<Device, Gradient, Updater>(TreeStepProblem<float>(
          Problem<float>(RandomTree(123, 40, &random), dim, 37, seed, dim != 1, dim == 17), rule, decay,
          seed));
      CheckTreeUpdate<Device, Gradient, Updater>(TreeStepProblem<bfloat16>(
          Problem<bfloat16>(RandomTree(252, 40, &random), dim, 41, seed), rule, decay, seed));
    }
  }
}

// Groups that are cut into tasks, and into several ranges where the scratch memory is small.
template <typename Device, typename Gradient, typename Updater>
void LargeNodes() {
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kRowWiseAdagrad, UpdateRule::kLazyAdam}) {
    if (kEmulated && rule == UpdateRule::kLazyAdam) continue;
    ForEachLevel<Device>([&] {
      CheckTreeUpdate<Device, Gradient, Updater>(
          TreeStepProblem<float>(Problem<float>(HeadTailTree(700, 90, 9, 5), 36, 301, 1), rule, 0.f, 1));
      CheckTreeUpdate<Device, Gradient, Updater>(TreeStepProblem<float>(
          Problem<float>(TwoLevelTree(1200, 3), 100, 150, 2, false, false), rule, 0.01f, 2));
      CheckTreeUpdate<Device, Gradient, Updater>(
          TreeStepProblem<bfloat16>(Problem<bfloat16>(TwoLevelTree(600, 2), 50, 301, 3), rule, 0.f, 3));
      CheckTreeUpdate<Device, Gradient, Updater>(TreeStepProblem<float, bfloat16>(
          Problem<float, bfloat16>(HeadTailTree(700, 90, 9, 5), 36, 301, 6), rule, 0.f, 6));
      CheckTreeUpdate<Device, Gradient, Updater>(TreeStepProblem<bfloat16, bfloat16>(
          Problem<bfloat16, bfloat16>(TwoLevelTree(600, 2), 50, 301, 7), rule, 0.f, 7));
    });
    if (kEmulated) continue;
    // 40 x 13 children, hundreds of tokens each: several large groups share a wave.
    CheckTreeUpdate<Device, Gradient, Updater>(
        TreeStepProblem<float>(Problem<float>(TwoLevelTree(520, 40), 132, 6000, 4), rule, 0.f, 4));
    CheckTreeUpdate<Device, Gradient, Updater>(TreeStepProblem<bfloat16>(
        Problem<bfloat16>(TwoLevelTree(520, 40), 132, 6000, 5, true, false), rule, 0.f, 5));
  }
}

template <typename Device, typename Gradient, typename Updater>
void TreesAmidOtherWork() {
  Random random(1);
  const TreeStepProblem<float> s(Problem<float>(HeadTailTree(700, 90, 9, 5), 36, 101, 1),
                                 UpdateRule::kAdagrad, 0.01f, 1);
  const TreeStepProblem<bfloat16> other(Problem<bfloat16>(RandomTree(252, 40, &random), 17, 41, 2),
                                        UpdateRule::kSgd, 0.f, 2);
  for (const int64_t scratch : {-1, 20000}) {
    CheckRepeats<Device>([&] { return InOnePass<Device>(s, scratch); },
                         [&] { InOnePass<Device>(other, -1); });
  }
}

template <typename Device, typename Gradient, typename Updater>
void NothingToUpdate() {
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kRowWiseAdagrad}) {
    CheckTreeUpdate<Device, Gradient, Updater>(
        TreeStepProblem<float>(Problem<float>(TwoLevelTree(20, 4), 8, 0, 1), rule, 0.f, 1));
    CheckTreeUpdate<Device, Gradient, Updater>(
        TreeStepProblem<float>(Problem<float>(TwoLevelTree(20, 4), 0, 5, 2), rule, 0.f, 2));
    CheckTreeUpdate<Device, Gradient, Updater>(
        TreeStepProblem<float>(Problem<float>(FlatTree(1), 8, 1, 3), rule, 0.f, 3));
  }
}

}  // namespace largeout

#define LARGEOUT_TREE_UPDATE_CASES(Device, Gradient, Updater)        \
  LARGEOUT_FUSED_CASE(EveryRuleOnATree, Device, Gradient, Updater)   \
  LARGEOUT_FUSED_CASE(LargeNodes, Device, Gradient, Updater)         \
  LARGEOUT_FUSED_CASE(TreesAmidOtherWork, Device, Gradient, Updater) \
  LARGEOUT_FUSED_CASE(NothingToUpdate, Device, Gradient, Updater)

#endif  // LARGEOUT_TREE_UPDATE_TREE_UPDATE_CASES_H_
