// Tests of top-k on any device: against the sorted log probabilities of all classes in float64, and on GPUs
// against the CPU's search, ids where no two scores are close.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TOPK_CASES_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TOPK_CASES_H_

#include <algorithm>

#include "tree_softmax/test/tree_softmax_problem.h"

namespace largeout {

template <typename Id>
struct TopKResult {
  bool ok = false;
  std::vector<float> log_probs;
  std::vector<Id> ids;
};

template <typename Device, typename Id, typename T, typename H>
TopKResult<Id> TopK(const Problem<T, H>& p, int64_t k, const std::vector<int32_t>& row_child,
                    int threads = 1) {
  const ProblemOn<Device, T, H> on(p);
  const ArrayOf<Device, int32_t> children(row_child);
  const ArrayOf<Device, float> log_probs(Unwritten<float>(p.tokens * k));
  const ArrayOf<Device, Id> ids(Unwritten<Id>(p.tokens * k));
  TestCall<typename Device::Call> call(threads);
  TopKResult<Id> r;
  CHECK_TRUE(Device(call.get())
                 .TopK(on.arrays(), children.get(), on.table, on.hidden.get(), p.tokens, k, log_probs.get(),
                       ids.get(), &r.ok) == 0);
  r.log_probs = log_probs.Host(), r.ids = ids.Host();
  return r;
}

// The log probabilities of all classes.
template <typename T, typename H>
std::vector<double> LogProbs(const Problem<T, H>& p, int64_t query) {
  std::vector<double> of_row(p.arrays.rows), of_class;
  for (int64_t n = 0; n < p.arrays.nodes; ++n) {
    const double above = n == 0 ? 0.0 : of_row[p.arrays.node_row[n]];
    const auto here = NodeLogProbs(p, n, query);
    for (size_t j = 0; j < here.size(); ++j) of_row[p.arrays.node_start[n] + j] = above + here[j];
  }
  for (int64_t c = 0; c < p.arrays.classes; ++c) of_class.push_back(of_row[p.arrays.class_row[c]]);
  return of_class;
}

template <typename Device, typename Id, typename T, typename H>
void CheckTopK(const Problem<T, H>& p, int64_t k) {
  constexpr double kTolerance = kOnCpu<Device> ? 3e-6 : 5e-6;
  const auto r = TopK<Device, Id>(p, k, p.tree.row_child);
  const auto again = TopK<Device, Id>(p, k, p.tree.row_child, 3);
  CHECK_TRUE(r.ok && again.ok && r.ids == again.ids && SameBits(r.log_probs, again.log_probs));
  const auto cpu = TopK<TreeSoftmaxCpu, Id>(p, k, p.tree.row_child);
  CHECK_TRUE(cpu.ok);
  const std::vector<float>& want = cpu.log_probs;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const std::vector<double> exact = LogProbs(p, t);
    std::vector<double> best = exact;
    std::sort(best.rbegin(), best.rend());
    std::vector<char> seen(p.arrays.classes);
    for (int64_t i = t * k; i < (t + 1) * k; ++i) {
      const bool in_range = r.ids[i] >= 0 && r.ids[i] < p.arrays.classes;
      CHECK_TRUE(in_range && !seen[r.ids[i]]);
      if (!in_range) continue;
      seen[r.ids[i]] = 1;
      if (kOnCpu<Device>) {
        CHECK_CLOSE(r.log_probs[i], best[i - t * k], kTolerance);
        CHECK_CLOSE(r.log_probs[i], exact[r.ids[i]], kTolerance);
      }
      CHECK_CLOSE(r.log_probs[i], want[i], kTolerance);
      if (i > t * k) CHECK_TRUE(r.log_probs[i] <= r.log_probs[i - 1]);
      const auto apart = [&](int64_t a, int64_t b) {  // beyond rounding; what follows the k-th is not known
        return a < t * k || (b < (t + 1) * k && want[a] - want[b] > 1e-4f * (1.f + std::fabs(want[a])));
      };
      if (apart(i - 1, i) && apart(i, i + 1)) CHECK_TRUE(r.ids[i] == cpu.ids[i]);
    }
  }
}

template <typename Device>
void TopKIsExact() {
  Random random(11);
  ForEachLevel<Device>([&] {
    for (const int64_t dim : {1, 17, 64}) {
      CheckTopK<Device, int32_t>(Problem<float>(RandomTree(507, 100, &random), dim, 29, dim), 10);
      CheckTopK<Device, int64_t>(Problem<bfloat16>(RandomTree(252, 100, &random), dim, 5, dim), 252);
      CheckTopK<Device, int64_t>(Problem<float>(HuffmanTree(123, 3), dim, 30, dim, false), 1);
      // More children than the GPU holds at once.
      CheckTopK<Device, int32_t>(Problem<float>(TwoLevelTree(3000, 1), dim, 3, dim), 3);
    }
  });
  CheckTopK<Device, int32_t>(Problem<float>(TwoLevelTree(1, 1), 4, 2, 1), 1);
  CheckTopK<Device, int32_t>(Problem<float>(HuffmanTree(123, 3), 0, 5, 1), 20);  // the biases alone decide
  // On GPUs the k best are then in device memory.
  CheckTopK<Device, int32_t>(Problem<bfloat16>(HuffmanTree(900, 8), 8, 6, 2), 700);
}

// Roots whose logits a GPU computes for many queries at once, in several turns.
template <typename Device>
void WideRoots() {
  CheckTopK<Device, int32_t>(Problem<float>(FlatTree(3000), 20, 70, 1), 7);
  CheckTopK<Device, int64_t>(Problem<bfloat16>(FlatTree(2049), 33, 40, 2, false), 1);
  CheckTopK<Device, int32_t>(Problem<float>(FlatTree(900), 5, 6, 3), 700);
  // Rows of float32 are not rounded beside these.
  CheckTopK<Device, int32_t>(Problem<float, bfloat16>(FlatTree(900), 20, 40, 12), 7);
  CheckTopK<Device, int32_t>(Problem<bfloat16, bfloat16>(FlatTree(900), 24, 40, 13), 7);
  CheckTopK<Device, int32_t>(Problem<float>(HeadTailTree(3000, 400, 9, 8), 12, 140, 4), 10);
  CheckTopK<Device, int32_t>(Problem<float>(FlatTree(100000), 2, 3, 5), 5);
  CheckTopK<Device, int32_t>(Problem<float>(FlatTree(700), 0, 5, 6),
                             700);  // all of them, by the biases alone
  // All classes tie: the smaller ids win, wherever their rows are.
  Problem<float> ties(HeadTailTree(2500, 2000, 5, 9), 4, 20, 7, false);
  std::fill(ties.table.begin(), ties.table.end(), 0.f);
  ties.hidden[0] = NAN;
  const auto r = TopK<Device, int32_t>(ties, 9, ties.tree.row_child);
  CHECK_TRUE(r.ok);
  for (int i = 0; i < 9; ++i) CHECK_TRUE(std::isnan(r.log_probs[i]));
  for (int i = 9; i < 180; ++i) CHECK_TRUE(r.ids[i] == i % 9);
  // All but a few are shut off, the first thousand too.
  Problem<float> masked(FlatTree(3000), 3, 20, 8);
  for (int i = 0; i < 3000; ++i) masked.bias[i] = i % 700 == 650 ? 1.f : -INFINITY;
  const auto few = TopK<Device, int32_t>(masked, 4, masked.tree.row_child);
  CHECK_TRUE(few.ok);
  for (int i = 0; i < 80; ++i) CHECK_TRUE(few.ids[i] % 700 == 650 && std::isfinite(few.log_probs[i]));
  {
    const ShiftedArrays shifted;
    CheckTopK<Device, int32_t>(Problem<float>(HeadTailTree(900, 300, 5, 8), 12, 20, 10), 10);
    CheckTopK<Device, int32_t>(Problem<bfloat16>(HeadTailTree(900, 300, 5, 8), 16, 20, 11), 10);
  }
  // Every child of the root stays open: more than the heap of a GPU holds.
  Problem<float> open(TwoLevelTree(4000, 2000), 4, 20, 9, false);
  for (float& x : open.table) x *= 0.01f;
  CheckTopK<Device, int32_t>(open, 4);
}

// A flat distribution opens more nodes than the heap in the shared memory of a GPU holds: the second search
// must answer.
template <typename Device>
void OverflowStaysExact() {
  NodeChildren nodes;
  AddBalanced(0, 5000, 2, &nodes);
  Problem<float> p(TestTree::From(nodes, 5000), 4, 3, 1, false);
  for (float& x : p.table) x *= 0.01f;
  CheckTopK<Device, int32_t>(p, 4);
}

template <typename Device>
void TiesNaNAndBrokenTrees() {
  Problem<float> p(TwoLevelTree(64, 8), 5, 3, 1, false);
  std::fill(p.table.begin(), p.table.end(), 0.f);  // every class ties
  p.hidden[0] = NAN;
  const auto r = TopK<Device, int32_t>(p, 9, p.tree.row_child);
  CHECK_TRUE(r.ok);
  for (int i = 0; i < 27; ++i) {
    if (i < 9) CHECK_TRUE(std::isnan(r.log_probs[i]));
    if (i >= 9) CHECK_TRUE(r.ids[i] == i % 9);
  }
  std::vector<int32_t> broken = p.tree.row_child;
  broken[2] = ~0;  // a cycle
  CHECK_TRUE((!TopK<Device, int32_t>(p, 9, broken).ok));
  broken[2] = 64;  // no such class
  CHECK_TRUE((!TopK<Device, int32_t>(p, 9, broken).ok));
  Problem<float> masked(TwoLevelTree(3000, 1), 3, 2, 9, true);  // a GPU's first logits are all -inf
  for (int i = 1; i < 2000; ++i) masked.bias[i] = -INFINITY;
  CheckTopK<Device, int32_t>(masked, 5);
  const Problem<float> none(HuffmanTree(10, 3), 4, 0, 1);
  CHECK_TRUE((TopK<Device, int32_t>(none, 2, none.tree.row_child).ok));
}

// Every row of a node leads to the next node: 2^50 paths to one class. No tree, and soon found to be none.
template <typename Device>
void NodesOfSeveralParents() {
  constexpr int32_t kDepth = 50;
  NodeChildren nodes;
  for (int32_t n = 0; n < kDepth; ++n) nodes.push_back({n, n + 1 < kDepth ? ~(n + 1) : kDepth});
  const Problem<float> p(TestTree::From(nodes, kDepth + 1), 3, 2, 1);
  CheckTopK<Device, int32_t>(p, 4);
  std::vector<int32_t> row_child = p.tree.row_child;
  for (int32_t n = 0; n + 1 < kDepth; ++n) row_child[2 * n] = row_child[2 * n + 1];
  CHECK_TRUE((!TopK<Device, int32_t>(p, 4, row_child).ok));
}

#define LARGEOUT_TREE_TOPK_CASES(Device)       \
  LARGEOUT_CASE(TopKIsExact, Device)           \
  LARGEOUT_CASE(WideRoots, Device)             \
  LARGEOUT_CASE(OverflowStaysExact, Device)    \
  LARGEOUT_CASE(TiesNaNAndBrokenTrees, Device) \
  LARGEOUT_CASE(NodesOfSeveralParents, Device)

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TOPK_CASES_H_
