// Tests of TreeSoftmaxCpu and TreeSoftmaxGpu: loss and gradient against float64 sums over the path (and on
// GPUs against the CPU), for trees of every shape.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CASES_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CASES_H_

#include "tree_softmax/test/tree_softmax_step.h"

namespace largeout {

template <typename Device>
void RandomTrees() {
  for (const int64_t widest : {400, 600}) {
    Random random(3);
    int64_t seed = 100;
    for (const int64_t dim : {1, 3, 17, 64, 304}) {
      if (kEmulated && widest == 400 && dim != 17) continue;
      for (const int64_t classes : {1, 2, 9, 123, 507}) {
        CheckProblem<Device>(Problem<float>(RandomTree(classes, widest, &random), dim, 37, ++seed,
                                            classes % 2 == 0, classes % 3 != 0));
      }
      CheckProblem<Device>(Problem<bfloat16>(RandomTree(252, 40, &random), dim, 41, ++seed));
    }
  }
}

// Many tokens at a node, wide roots and wide leaves. On CPUs every group is split, large ones in several
// waves where the scratch memory is small; on GPUs there are tiles of many and of few rows, slices, splits, partial
// sums.
template <typename Device>
void LargeGroups() {
  for (const int64_t dim : {33, 36})
    CheckProblem<Device>(Problem<float>(HeadTailTree(700, 90, 9, 5), dim, 301, 1));
  CheckProblem<Device>(Problem<float>(TwoLevelTree(1200, 3), 100, 150, 2, false, false));
  CheckProblem<Device>(Problem<bfloat16>(TwoLevelTree(600, 2), 50, 301, 3));
  // 40 x 13 children, hundreds of tokens.
  constexpr int64_t kTokens = kEmulated ? 400 : 700;
  CheckProblem<Device>(Problem<float>(TwoLevelTree(520, 40), 132, kTokens, 4));
  CheckProblem<Device>(Problem<bfloat16>(TwoLevelTree(520, 40), 132, kTokens, 5, true, false));
  // Wider than one block of online columns.
  CheckProblem<Device>(Problem<float>(TwoLevelTree(2100, 1), kEmulated ? 72 : 200, 90, 4));
  CheckProblem<Device>(Problem<float>(TwoLevelTree(2100, 1), 12, 9, 6));
}

// One node with all classes: on GPUs a block goes through several tiles of children, or a range of them, and
// their sums meet.
template <typename Device>
void FlatTrees() {
  CheckProblem<Device>(Problem<float>(FlatTree(1500), 20, 150, 1));
  CheckProblem<Device>(Problem<bfloat16>(FlatTree(1501), 24, 20, 2));
  CheckProblem<Device>(Problem<float>(FlatTree(333), 132, 40, 4));
  // A node of 100,000 children, every class of which a token may name.
  const Problem<float> wide(FlatTree(100000), 2, 3, 3);
  for (const int64_t scratch : {int64_t{-1}, int64_t{1} << 20})
    CheckAgainstTruth<Device>(wide, Step<Device>(wide, scratch));
}

// On GPUs they make products of wide nodes those of bfloat16: in tiles of few and of many rows, with and without narrow
// nodes beside them, in row gradients of several splits.
template <typename Device>
void HiddenVectorsOfBfloat16() {
  Random random(9);
  CheckProblem<Device>(Problem<float, bfloat16>(HeadTailTree(700, 90, 9, 5), 33, 301, 1));
  CheckProblem<Device>(Problem<bfloat16, bfloat16>(HeadTailTree(700, 90, 9, 5), 40, 301, 2));
  CheckProblem<Device>(Problem<float, bfloat16>(TwoLevelTree(600, 2), 24, 301, 3, false, false));
  CheckProblem<Device>(Problem<float, bfloat16>(FlatTree(333), 132, 290, 4));
  CheckProblem<Device>(Problem<bfloat16, bfloat16>(FlatTree(1501), 132, 20, 5));
  for (const int64_t dim : {1, 17, 64}) {
    CheckProblem<Device>(Problem<float, bfloat16>(RandomTree(507, 400, &random), dim, 37, dim));
    CheckProblem<Device>(Problem<bfloat16, bfloat16>(RandomTree(507, 400, &random), dim, 37, dim + 1));
  }
}

// More levels than a word has bits; wide nodes among them, and at the end.
template <typename Device>
void DeepTrees() {
  constexpr int32_t kDepth = 90;
  NodeChildren nodes(kDepth);
  int32_t classes = 0;
  for (int32_t n = 0; n < kDepth; ++n) {
    const int own = n == 40 || n == 70 ? 130 : n + 1 == kDepth ? 200 : 1 + n % 3;
    for (int i = 0; i < own; ++i) nodes[n].push_back(classes++);
    if (n + 1 < kDepth) nodes[n].push_back(~(n + 1));
  }
  Problem<float> p(TestTree::From(nodes, classes), 8, 40, 1);
  for (int64_t t = 0; t < p.tokens; t += 2) {  // long paths
    if (p.weights[t] != 0.f) p.targets[t] = classes - 1 - static_cast<int32_t>(t);
  }
  CheckProblem<Device>(p);
}

// Rows whose length would allow wide loads, and whose addresses do not.
template <typename Device>
void MisalignedRows() {
  const ShiftedArrays shifted;
  CheckProblem<Device>(Problem<float>(HeadTailTree(500, 150, 5, 5), 12, 90, 1));
  CheckProblem<Device>(Problem<bfloat16>(HeadTailTree(500, 150, 5, 5), 16, 40, 2));
  CheckProblem<Device>(Problem<float, bfloat16>(HeadTailTree(500, 150, 5, 5), 16, 40, 3));
  CheckProblem<Device>(Problem<bfloat16, bfloat16>(HeadTailTree(500, 150, 5, 5), 16, 40, 4));
}

template <typename Device>
void HuffmanTrees() {
  for (const int64_t arity : {2, 8}) {
    for (const int64_t tokens : {252, 507})
      CheckProblem<Device>(Problem<float>(HuffmanTree(1000, arity), 20, tokens, arity));
  }
}

// Several nodes without a parent, at several depths: what one device has of a tree that is cut over devices.
template <typename Device>
void Forests() {
  Random random(8);
  for (const int removed : {1, 2, 5, 20}) {
    CheckProblem<Device>(Problem<float>(Forest(HuffmanTree(1000, 3), removed), 12, 200, removed));
    CheckProblem<Device>(Problem<float>(Forest(HeadTailTree(700, 90, 9, 5), removed), 36, 301, removed));
    CheckProblem<Device>(Problem<bfloat16>(Forest(RandomTree(600, 40, &random), removed), 17, 90, removed));
  }
  CheckProblem<Device>(Problem<float>(Forest(TwoLevelTree(1200, 6), 1), 100, 150, 2, false, false));
}

// Rows without elements: the biases alone decide, or all children are alike.
template <typename Device>
void WidthZero() {
  Random random(6);
  CheckProblem<Device>(Problem<float>(RandomTree(507, 100, &random), 0, 37, 1));
  CheckProblem<Device>(Problem<float>(HeadTailTree(700, 90, 9, 5), 0, 301, 2));  // split groups, wide nodes
  CheckProblem<Device>(Problem<float>(HuffmanTree(1000, 2), 0, 252, 3, false));
  CheckProblem<Device>(Problem<bfloat16>(TwoLevelTree(600, 2), 0, 301, 4));
  CheckProblem<Device>(Problem<float, bfloat16>(TwoLevelTree(600, 2), 0, 301, 5));
}

template <typename Device>
void EmptyBatchAndSkippedTokens() {
  for (const int64_t scratch : {-1, 1000}) {
    const auto none = Step<Device>(Problem<float>(HuffmanTree(10, 3), 4, 0, 1), scratch);
    CHECK_TRUE(none.loss.empty() && none.rows.empty() && none.group_start == std::vector<int32_t>(1));
    const auto rounded = Step<Device>(Problem<float, bfloat16>(HuffmanTree(10, 3), 4, 0, 1), scratch);
    CHECK_TRUE(rounded.loss.empty() && rounded.group_start == std::vector<int32_t>(1));
    Problem<float> skipped(HuffmanTree(10, 3), 4, 5, 1);
    std::fill(skipped.weights.begin(), skipped.weights.end(), 0.f);
    const auto zeros = Step<Device>(skipped, scratch);
    CHECK_TRUE(zeros.loss == std::vector<float>(5) && zeros.d_hidden == std::vector<float>(20));
    CHECK_TRUE(zeros.rows.empty() && zeros.group_start == std::vector<int32_t>(1));
    CHECK_TRUE((zeros == Step<Device>(skipped, scratch, {1, 50, true})));
  }
}

template <typename Device>
void BadTargets() {
  Problem<float> p(HuffmanTree(50, 4), 4, 300, 1, true, false);
  p.targets[207] = 50, p.targets[299] = -1;
  const TreePaths bad = Step<Device>(p, -1).paths;
  CHECK_TRUE(bad.status == TreeStatus::kBadTarget && bad.bad_position == 207 && bad.bad_target == 50);

  const TreeOn<Device> tree(HuffmanTree(50, 4));
  const ArrayOf<Device, int64_t> targets(std::vector<int64_t>{3, 49, 50, -1});
  const ArrayOf<Device, float> weights(std::vector<float>{1, 1, 0, 0});
  for (const auto& [skip, likely] : {std::pair(false, 0), {false, 100}, {true, 0}, {true, 100}}) {
    TestCall<typename Device::Call> call;
    TreePaths paths;
    CHECK_TRUE(Device(call.get())
                   .FindPaths(tree.arrays(), targets.get(), skip ? weights.get() : nullptr, 4, 1, likely,
                              call.get().scratch, &paths) == 0);
    CHECK_TRUE(paths.status == (skip ? TreeStatus::kOk : TreeStatus::kBadTarget));
    if (!skip) CHECK_TRUE(paths.bad_position == 2 && paths.bad_target == 50);
  }
}

// Broken arrays are found, or harmless: paths stay within the rows.
template <typename Device>
void BadTrees() {
  Random random(5);
  for (int64_t i = 0; i < (kOnCpu<Device> ? 3000 : 300); ++i) {
    TestTree broken = HuffmanTree(50, 4);
    std::vector<int32_t>* arrays[] = {&broken.class_row, &broken.node_start, &broken.node_row,
                                      &broken.node_parent, &broken.row_hint};
    std::vector<int32_t>& array = *arrays[i % 5];
    array[random.Below(array.size())] =
        static_cast<int32_t>(random.Below(2) ? random.Below(80) - 10 : random.Next());
    const Problem<float> p(broken, 1, kOnCpu<Device> ? 4 : 40, i, false, false);
    const ProblemOn<Device, float> on(p);
    TestCall<typename Device::Call> call;
    Device device(call.get());
    TreePaths paths;
    CHECK_TRUE(device.FindPaths(on.arrays(), on.targets.get(), nullptr, p.tokens, 1, i % 2 * 300,
                                call.get().scratch, &paths) == 0);
    CHECK_TRUE(paths.status == TreeStatus::kBadTree || paths.status == TreeStatus::kOk);
    if (paths.status != TreeStatus::kOk) continue;
    const ArrayOf<Device, float> loss(p.tokens), lse(paths.pairs);
    const ArrayOf<Device, int32_t> token(paths.pairs), row(paths.pairs), node(paths.groups),
        start(paths.groups + 1);
    CHECK_TRUE(device.Loss(on.arrays(), on.table, on.hidden.get(), nullptr, p.tokens,
                           {loss.get(), token.get(), row.get(), node.get(), start.get(), lse.get(), nullptr},
                           1 << 20) == 0);
    for (const int32_t r : row.Host()) CHECK_TRUE(r >= 0 && r < p.arrays.rows);
    const TreeSaved saved{token.get(), row.get(), node.get(),  start.get(),
                          lse.get(),   nullptr,   paths.pairs, paths.groups};
    TestCall<typename Device::Call> gradient_call;
    TreeTouched checked;
    CHECK_TRUE(Device(gradient_call.get()).template Check<float>(on.arrays(), saved, p.tokens, 1, &checked) ==
               0);
    const auto plan = device.GradientPlan();
    CHECK_TRUE(plan.ok == checked.ok);
    if (!checked.ok) continue;
    const TreeTouched resumed = Device(gradient_call.get()).Resume(plan);
    CHECK_TRUE(resumed.rows == checked.rows && resumed.probs == checked.probs);
  }
}

template <typename Device>
void BadSavedTensors() {
  const Problem<float> p(HuffmanTree(50, 4), 4, 40, 2, true, false);
  const StepResult<float> step = Step<Device>(p, -1);
  const TreeOn<Device> tree(p.tree);
  for (int i = 0; i < 5; ++i) {
    auto token = step.pair_token, row = step.pair_row, node = step.group_node, start = step.group_start;
    if (i == 1) token[7] = 40;
    if (i == 2) row[9] = 1 << 20;
    if (i == 3) node[2] = node[1];
    if (i == 4) start.back() += 1;
    const ArrayOf<Device, int32_t> a(token), b(row), c(node), d(start);
    const TreeSaved saved{a.get(), b.get(), c.get(),          d.get(),
                          nullptr, nullptr, step.paths.pairs, step.paths.groups};
    TestCall<typename Device::Call> call;
    TreeTouched touched;
    CHECK_TRUE(Device(call.get()).template Check<float>(tree.arrays(), saved, p.tokens, p.dim, &touched) ==
               0);
    CHECK_TRUE(touched.ok == (i == 0));
  }
}

template <typename Device>
void ExtremeLogits() {
  for (const int64_t dim : {3, 4}) {
    Problem<float> p(HuffmanTree(40, 8), dim, 6, 9, true, false);
    for (float& x : p.hidden) x *= 300.f;
    for (const int64_t scratch : {-1, 1 << 20}) CheckAgainstTruth<Device>(p, Step<Device>(p, scratch));
    p.hidden[0] = NAN;
    p.hidden[dim] = INFINITY;
    for (const int64_t scratch : {-1, 1 << 20}) {
      const auto r = Step<Device>(p, scratch);
      CHECK_TRUE(std::isnan(r.loss[0]) && std::isnan(r.loss[1]) && std::isfinite(r.loss[2]) &&
                 std::isfinite(r.d_hidden[2 * dim]));
    }
  }
  for (const int classes :
       {20, 200}) {  // all but two are shut off by a bias of -inf, which keeps those finite
    Problem<float> masked(TwoLevelTree(classes, 1), 3, 1, 9, true, false);
    masked.targets[0] = classes - 1;
    for (int i = 1; i < classes - 1; ++i) masked.bias[1 + i] = -INFINITY;
    for (const int64_t scratch : {-1, 1 << 20})
      CHECK_TRUE(std::isfinite(Step<Device>(masked, scratch).loss[0]));
  }
}

#define LARGEOUT_TREE_SOFTMAX_CASES(Device)         \
  LARGEOUT_CASE(RandomTrees, Device)                \
  LARGEOUT_CASE(LargeGroups, Device)                \
  LARGEOUT_CASE(FlatTrees, Device)                  \
  LARGEOUT_CASE(HiddenVectorsOfBfloat16, Device)    \
  LARGEOUT_CASE(DeepTrees, Device)                  \
  LARGEOUT_CASE(MisalignedRows, Device)             \
  LARGEOUT_CASE(HuffmanTrees, Device)               \
  LARGEOUT_CASE(Forests, Device)                    \
  LARGEOUT_CASE(WidthZero, Device)                  \
  LARGEOUT_CASE(EmptyBatchAndSkippedTokens, Device) \
  LARGEOUT_CASE(BadTargets, Device)                 \
  LARGEOUT_CASE(BadTrees, Device)                   \
  LARGEOUT_CASE(BadSavedTensors, Device)            \
  LARGEOUT_CASE(ExtremeLogits, Device)

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CASES_H_
