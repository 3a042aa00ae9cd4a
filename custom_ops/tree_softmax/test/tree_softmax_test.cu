// The CUDA twin against the CPU kernels and against float64, on trees of every shape; each step runs twice
// and must leave the same bits. Exit code 77 without a GPU.
#include <cmath>
#include <limits>

#include "common/parallel.h"
#include "tree_softmax/test/tree_softmax_cuda_testing.cuh"

namespace largeout {
namespace {

template <typename T>
StepResult<T> CpuStep(const CudaProblem<T>& p, int64_t scratch_bytes) {
  SerialParallel parallel;
  const float* weights = p.weights.empty() ? nullptr : p.weights.data();
  TreePairs pairs;
  StepResult<T> r;
  r.status = BuildTreePairs(p.arrays, p.targets.data(), weights, p.tokens, &parallel, &pairs);
  r.bad_position = pairs.bad_position;
  if (r.status != TreeStatus::kOk) return r;
  r.pair_token = pairs.token, r.pair_row = pairs.row, r.group_node = pairs.group_node,
  r.group_start = pairs.group_start;
  r.loss.resize(p.tokens);
  r.lse.resize(pairs.token.size());
  r.probs.resize(scratch_bytes < 0 ? pairs.prob_count : 0);
  float* probs = scratch_bytes < 0 ? r.probs.data() : nullptr;
  TreeSoftmaxLoss(p.arrays, p.Table(), p.hidden.data(), weights, p.tokens, pairs, r.loss.data(), r.lse.data(),
                  probs, &parallel);
  const TreeSaved saved{r.pair_token.data(),
                        r.pair_row.data(),
                        r.group_node.data(),
                        r.group_start.data(),
                        r.lse.data(),
                        probs,
                        static_cast<int64_t>(r.pair_token.size()),
                        static_cast<int64_t>(r.group_node.size())};
  int64_t unique = 0, prob_count = 0;
  CHECK_TRUE(CheckTreeSaved(p.arrays, saved, p.tokens, &unique, &prob_count));
  r.d_hidden.resize(p.tokens * p.dim);
  r.rows.resize(unique);
  r.row_grads.resize(unique * p.dim);
  r.bias_grads.resize(p.bias.empty() ? 0 : unique);
  TreeSoftmaxGrad(p.arrays, p.Table(), p.hidden.data(), weights, p.grad_loss.data(), p.tokens, saved,
                  scratch_bytes, r.d_hidden.data(), r.rows.data(), r.row_grads.data(),
                  p.bias.empty() ? nullptr : r.bias_grads.data(), &parallel);
  return r;
}

// Tensor cores take bfloat16 tables; float32 operands lose 8 of 24 bits there (tree_softmax_mma_tile.cuh).
template <typename T>
constexpr double LossTolerance() {
  return sizeof(T) == 2 ? 5e-5 : 5e-6;
}
template <typename T>
constexpr double GradTolerance() {
  return sizeof(T) == 2 ? 1e-4 : 3e-5;
}

// Loss, d_hidden and row gradients from the definition, in float64. (Small problems only.)
template <typename T>
void CheckAgainstTruth(const CudaProblem<T>& p, const StepResult<T>& r) {
  std::vector<double> row_grads(p.arrays.rows * p.dim), bias_grads(p.arrays.rows);
  for (int64_t t = 0; t < p.tokens; ++t) {
    const double weight = p.weights.empty() ? 1.0 : p.weights[t];
    std::vector<double> d_hidden(p.dim);
    double loss = 0.0;
    for (int64_t row = weight == 0.0 ? -1 : p.arrays.class_row[p.targets[t]]; row >= 0;) {
      const auto& starts = p.tree.node_start;
      const int64_t node = std::upper_bound(starts.begin(), starts.end(), row) - starts.begin() - 1;
      std::vector<double> x;
      double top = -std::numeric_limits<double>::infinity(), sum = 0.0;
      for (int64_t i = starts[node]; i < starts[node + 1]; ++i) {
        double dot = p.bias.empty() ? 0.0 : p.bias[i];
        for (int64_t k = 0; k < p.dim; ++k)
          dot += double{ToFloat(p.table[i * p.dim + k])} * p.hidden[t * p.dim + k];
        x.push_back(dot);
        top = std::max(top, dot);
      }
      for (const double v : x) sum += std::exp(v - top);
      const double lse = top + std::log(sum);
      loss += lse - x[row - starts[node]];
      for (int64_t i = starts[node]; i < starts[node + 1]; ++i) {
        const double g = (std::exp(x[i - starts[node]] - lse) - (i == row)) * weight * p.grad_loss[t];
        bias_grads[i] += g;
        for (int64_t k = 0; k < p.dim; ++k) {
          d_hidden[k] += g * ToFloat(p.table[i * p.dim + k]);
          row_grads[i * p.dim + k] += g * p.hidden[t * p.dim + k];
        }
      }
      row = p.arrays.node_row[node];
    }
    CHECK_CLOSE(r.loss[t], loss * weight, LossTolerance<T>());
    for (int64_t k = 0; k < p.dim; ++k) CHECK_CLOSE(r.d_hidden[t * p.dim + k], d_hidden[k], GradTolerance<T>());
  }
  for (size_t u = 0; u < r.rows.size(); ++u) {
    for (int64_t k = 0; k < p.dim; ++k) {
      CHECK_CLOSE(ToFloat(r.row_grads[u * p.dim + k]), row_grads[r.rows[u] * p.dim + k],
                  sizeof(T) == 2 ? 5e-3 : GradTolerance<T>());
    }
    if (!p.bias.empty()) CHECK_CLOSE(r.bias_grads[u], bias_grads[r.rows[u]], GradTolerance<T>());
  }
}

void CheckAllClose(const std::vector<float>& got, const std::vector<float>& want, double tolerance,
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

template <typename T>
void CheckProblem(const CudaProblem<T>& p, bool truth = true) {
  // Saved probabilities; computed anew in one chunk; in many.
  for (const int64_t scratch : {int64_t{-1}, int64_t{1} << 28, int64_t{20000}}) {
    const StepResult<T> r = CudaStep(p, scratch), want = CpuStep(p, scratch);
    CHECK_TRUE(r == CudaStep(p, scratch));
    CHECK_TRUE(r.status == TreeStatus::kOk && want.status == TreeStatus::kOk);
    CHECK_TRUE(r.pair_token == want.pair_token && r.pair_row == want.pair_row);
    CHECK_TRUE(r.group_node == want.group_node && r.group_start == want.group_start && r.rows == want.rows);
    CheckAllClose(r.loss, want.loss, LossTolerance<T>(), "loss");
    CheckAllClose(r.lse, want.lse, LossTolerance<T>(), "lse");
    CheckAllClose(r.probs, want.probs, LossTolerance<T>(), "probs");
    CheckAllClose(r.d_hidden, want.d_hidden, GradTolerance<T>(), "d_hidden");
    CheckAllClose(r.bias_grads, want.bias_grads, GradTolerance<T>(), "bias_grads");
    if (truth) CheckAgainstTruth(p, r);
  }
}

}  // namespace

LARGEOUT_TEST(RandomTrees) {
  Random random(3);
  int64_t seed = 100;
  for (const int64_t dim : {1, 3, 17, 64, 304}) {
    for (const int64_t classes : {1, 2, 9, 123, 507}) {
      CheckProblem(CudaProblem<float>(RandomTree(classes, 400, &random), dim, 37, ++seed, classes % 2 == 0,
                                      classes % 3 != 0));
    }
    CheckProblem(CudaProblem<bfloat16>(RandomTree(252, 40, &random), dim, 41, ++seed));
  }
}

// Wide roots and wide leaves, many tokens at a node: tall and flat tiles, slices, splits, partial sums.
LARGEOUT_TEST(WideNodes) {
  CheckProblem(CudaProblem<float>(HeadTailTree(700, 90, 9, 5), 36, 301, 1));
  CheckProblem(CudaProblem<float>(TwoLevelTree(1200, 3), 100, 150, 2, false, false));
  CheckProblem(CudaProblem<bfloat16>(TwoLevelTree(600, 2), 50, 301, 3));
  CheckProblem(
      CudaProblem<float>(TwoLevelTree(520, 40), 132, 700, 4));  // 40 x 13 children, hundreds of tokens
  CheckProblem(CudaProblem<bfloat16>(TwoLevelTree(520, 40), 132, 700, 5, true, false));
  CheckProblem(CudaProblem<float>(TwoLevelTree(2100, 1), 12, 9, 6));
}

LARGEOUT_TEST(HuffmanTrees) {
  for (const int64_t arity : {2, 8})
    CheckProblem(CudaProblem<float>(HuffmanTree(1000, arity), 20, 507, arity));
}

// Several nodes without a parent, at several depths: what one device has of a tree that is cut over devices.
LARGEOUT_TEST(Forests) {
  Random random(8);
  for (const int removed : {1, 2, 5, 20}) {
    CheckProblem(CudaProblem<float>(Forest(HuffmanTree(1000, 3), removed), 12, 200, removed));
    CheckProblem(CudaProblem<float>(Forest(HeadTailTree(700, 90, 9, 5), removed), 36, 301, removed));
    CheckProblem(CudaProblem<bfloat16>(Forest(RandomTree(600, 40, &random), removed), 17, 90, removed));
  }
  CheckProblem(CudaProblem<float>(Forest(TwoLevelTree(1200, 6), 1), 100, 150, 2, false, false));
}

// Rows without elements: the biases alone decide, or all children are alike.
LARGEOUT_TEST(WidthZero) {
  Random random(6);
  CheckProblem(CudaProblem<float>(RandomTree(507, 100, &random), 0, 37, 1));
  CheckProblem(CudaProblem<float>(HeadTailTree(700, 90, 9, 5), 0, 301, 2));  // wide nodes
  CheckProblem(CudaProblem<float>(HuffmanTree(1000, 2), 0, 252, 3, false));
  CheckProblem(CudaProblem<bfloat16>(TwoLevelTree(600, 2), 0, 301, 4));
}

LARGEOUT_TEST(EmptyBatchAndSkippedTokens) {
  for (const int64_t scratch : {-1, 1000}) {
    const auto none = CudaStep(CudaProblem<float>(HuffmanTree(10, 3), 4, 0, 1), scratch);
    CHECK_TRUE(none.loss.empty() && none.rows.empty());
    CudaProblem<float> skipped(HuffmanTree(10, 3), 4, 5, 1);
    std::fill(skipped.weights.begin(), skipped.weights.end(), 0.f);
    const auto zeros = CudaStep(skipped, scratch);
    CHECK_TRUE(zeros.loss == std::vector<float>(5) && zeros.d_hidden == std::vector<float>(20) &&
               zeros.rows.empty());
    CHECK_TRUE(zeros.group_start == std::vector<int32_t>(1));
  }
}

LARGEOUT_TEST(BadTargetsTreesAndSavedTensors) {
  CudaProblem<float> p(HuffmanTree(50, 4), 4, 300, 1, true, false);
  p.targets[207] = 50, p.targets[299] = -1;
  const auto bad = CudaStep(p, -1);
  CHECK_TRUE(bad.status == TreeStatus::kBadTarget && bad.bad_position == 207);
  Random random(5);
  for (int i = 0; i < 300; ++i) {  // broken arrays are found, or harmless
    TestTree broken = HuffmanTree(50, 4);
    std::vector<int32_t>* arrays[] = {&broken.class_row, &broken.node_start, &broken.node_row,
                                      &broken.node_parent, &broken.row_hint};
    std::vector<int32_t>& array = *arrays[i % 5];
    array[random.Below(array.size())] =
        static_cast<int32_t>(random.Below(2) ? random.Below(80) - 10 : random.Next());
    CudaProblem<float> q(broken, 1, 40, i, false, false);
    const GpuTree tree(broken);
    const GpuArray<int32_t> targets(q.targets);
    FreshScratch scratch;
    TreeLossPlan plan;
    CUDA_OK(
        PlanTreeLossCuda(tree.arrays(), targets.data(), nullptr, q.tokens, q.dim, &scratch, nullptr, &plan));
    CHECK_TRUE(plan.status == TreeStatus::kBadTree || plan.status == TreeStatus::kOk);
  }
  CudaProblem<float> good(HuffmanTree(50, 4), 4, 40, 2, true, false);
  const auto step = CudaStep(good, -1);
  const GpuTree tree(good.tree);
  for (int i = 0; i < 5; ++i) {
    auto token = step.pair_token, row = step.pair_row, node = step.group_node, start = step.group_start;
    if (i == 1) token[7] = 40;
    if (i == 2) row[9] = 1 << 20;
    if (i == 3) node[2] = node[1];
    if (i == 4) start.back() += 1;
    const GpuArray<int32_t> a(token), b(row), c(node), d(start);
    const TreeSaved saved{a.data(), b.data(), c.data(), d.data(), nullptr, nullptr, a.size(), c.size()};
    FreshScratch scratch;
    TreeGradPlan plan;
    CUDA_OK(PlanTreeGradCuda(tree.arrays(), saved, good.tokens, good.dim, false, &scratch, nullptr, &plan));
    CHECK_TRUE(plan.ok == (i == 0));
  }
}

LARGEOUT_TEST(ExtremeLogits) {
  CudaProblem<float> p(HuffmanTree(40, 8), 4, 6, 9, true, false);
  for (float& x : p.hidden) x *= 300.f;
  for (const int64_t scratch : {-1, 1 << 20}) CheckAgainstTruth(p, CudaStep(p, scratch));
  p.hidden[0] = NAN;
  p.hidden[4] = INFINITY;
  for (const int64_t scratch : {-1, 1 << 20}) {
    const auto r = CudaStep(p, scratch);
    CHECK_TRUE(std::isnan(r.loss[0]) && std::isnan(r.loss[1]) && std::isfinite(r.loss[2]) &&
               std::isfinite(r.d_hidden[8]));
  }
  CudaProblem<float> masked(TwoLevelTree(200, 1), 3, 1, 9, true, false);  // all but two classes shut off
  masked.targets[0] = 199;
  for (int i = 1; i < 199; ++i) masked.bias[1 + i] = -INFINITY;
  for (const int64_t scratch : {-1, 1 << 20}) CHECK_TRUE(std::isfinite(CudaStep(masked, scratch).loss[0]));
}

}  // namespace largeout

int main() { return largeout::HasGpu() ? largeout::TestMain() : 77; }
