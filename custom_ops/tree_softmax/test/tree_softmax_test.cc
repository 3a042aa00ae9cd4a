// Loss and gradient against float64 sums over the path, for trees of every shape, at every instruction-set level, with any
// number of threads.
#include "tree_softmax/tree_softmax.h"

#include <cstring>
#include <limits>
#include <utility>

#include "common/test/check.h"
#include "common/isa.h"
#include "tree_softmax/test/tree_softmax_problem.h"

namespace largeout {
namespace {

template <typename T>
struct Result {
  std::vector<float> loss, lse, d_hidden, bias_grads;
  std::vector<T> row_grads;
  std::vector<int64_t> rows;
  template <typename U>
  static bool Bits(const std::vector<U>& a, const std::vector<U>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(U)) == 0);
  }
  bool operator==(const Result& o) const {
    return Bits(loss, o.loss) && Bits(lse, o.lse) && Bits(d_hidden, o.d_hidden) && Bits(bias_grads, o.bias_grads) &&
           Bits(row_grads, o.row_grads) && rows == o.rows;
  }
};

// scratch_bytes < 0: probabilities are saved.
template <typename T>
Result<T> Compute(const Problem<T>& p, Parallel* parallel, int64_t scratch_bytes) {
  const float* weights = p.weights.empty() ? nullptr : p.weights.data();
  TreePairs pairs;
  CHECK_TRUE(BuildTreePairs(p.arrays, p.targets.data(), weights, p.tokens, parallel, &pairs) == TreeStatus::kOk);
  Result<T> r;
  r.loss.assign(p.tokens, NAN);
  r.lse.assign(pairs.token.size(), NAN);
  std::vector<float> probs(scratch_bytes < 0 ? pairs.prob_count : 0, NAN);
  float* kept = scratch_bytes < 0 ? probs.data() : nullptr;
  TreeSoftmaxLoss(p.arrays, p.Table(), p.hidden.data(), weights, p.tokens, pairs, r.loss.data(), r.lse.data(), kept, parallel);
  const TreeSaved saved{pairs.token.data(), pairs.row.data(), pairs.group_node.data(), pairs.group_start.data(), r.lse.data(), kept,
                        static_cast<int64_t>(pairs.token.size()), static_cast<int64_t>(pairs.group_node.size())};
  int64_t unique, prob_count;
  CHECK_TRUE(CheckTreeSaved(p.arrays, saved, p.tokens, &unique, &prob_count));
  CHECK_TRUE(prob_count == pairs.prob_count);
  r.d_hidden.assign(p.tokens * p.dim, NAN);
  r.rows.assign(unique, -1);
  r.row_grads.resize(unique * p.dim);
  for (T& x : r.row_grads) FromFloat(NAN, &x);
  r.bias_grads.assign(p.bias.empty() ? 0 : unique, NAN);
  TreeSoftmaxGrad(p.arrays, p.Table(), p.hidden.data(), weights, p.grad_loss.data(), p.tokens, saved, scratch_bytes,
                  r.d_hidden.data(), r.rows.data(), r.row_grads.data(), p.bias.empty() ? nullptr : r.bias_grads.data(), parallel);
  return r;
}

template <typename T>
void CheckAgainstReference(const Problem<T>& p, const Result<T>& r) {
  std::vector<double> d_hidden(p.tokens * p.dim), row_grads(p.arrays.rows * p.dim), bias_grads(p.arrays.rows);
  std::vector<char> touched(p.arrays.rows);
  for (int64_t t = 0; t < p.tokens; ++t) {
    const double weight = p.weights.empty() ? 1.0 : p.weights[t];
    double loss = 0.0;
    if (weight != 0.0) {
      int64_t row = p.arrays.class_row[p.targets[t]];
      while (row >= 0) {
        const int64_t node = std::upper_bound(p.tree.node_start.begin(), p.tree.node_start.end(), row) - p.tree.node_start.begin() - 1;
        const std::vector<double> log_probs = NodeLogProbs(p, node, t);
        const int64_t first = p.arrays.node_start[node];
        loss -= log_probs[row - first];
        for (int64_t j = 0; j < static_cast<int64_t>(log_probs.size()); ++j) {
          const double g = (std::exp(log_probs[j]) - (first + j == row)) * weight * p.grad_loss[t];
          touched[first + j] = 1;
          bias_grads[first + j] += g;
          for (int64_t k = 0; k < p.dim; ++k) {
            d_hidden[t * p.dim + k] += g * ToFloat(p.table[(first + j) * p.dim + k]);
            row_grads[(first + j) * p.dim + k] += g * p.hidden[t * p.dim + k];
          }
        }
        row = p.arrays.node_row[node];
      }
    }
    CHECK_CLOSE(r.loss[t], loss * weight, 3e-6);
  }
  const double row_tolerance = sizeof(T) == 2 ? 4e-3 : 2e-5;
  for (int64_t i = 0; i < p.tokens * p.dim; ++i) CHECK_CLOSE(r.d_hidden[i], d_hidden[i], 2e-5);
  size_t at = 0;
  for (int64_t row = 0; row < p.arrays.rows; ++row) {
    if (!touched[row]) continue;
    CHECK_TRUE(at < r.rows.size() && r.rows[at] == row);
    if (at >= r.rows.size()) return;
    for (int64_t k = 0; k < p.dim; ++k) CHECK_CLOSE(ToFloat(r.row_grads[at * p.dim + k]), row_grads[row * p.dim + k], row_tolerance);
    if (!p.bias.empty()) CHECK_CLOSE(r.bias_grads[at], bias_grads[row], 2e-5);
    ++at;
  }
  CHECK_TRUE(at == r.rows.size());
}

template <typename T>
void CheckProblem(const Problem<T>& p) {
  SerialParallel serial;
  ThreadParallel threads(3);
  for (const Isa isa : {Isa::kGeneric, Isa::kV3, Isa::kV4}) {
    if (SetIsa(isa) != isa) continue;
    for (const int64_t scratch : {int64_t{-1}, int64_t{1} << 28, int64_t{20000}}) {
      const Result<T> one = Compute(p, &serial, scratch);
      CHECK_TRUE(one == Compute(p, &threads, scratch));
      CheckAgainstReference(p, one);
    }
  }
  SetIsa(Isa::kV4);
}

}  // namespace

LARGEOUT_TEST(RandomTrees) {
  Random random(3);
  int64_t seed = 100;
  for (const int64_t dim : {1, 3, 17, 64, 304}) {
    for (const int64_t classes : {1, 2, 9, 123, 507}) {
      CheckProblem(Problem<float>(RandomTree(classes, 600, &random), dim, 37, ++seed, classes % 2 == 0, classes % 3 != 0));
    }
    CheckProblem(Problem<bfloat16>(RandomTree(252, 40, &random), dim, 41, ++seed));
  }
}

// Many tokens: every group is split, large ones in several waves where the scratch memory is small.
LARGEOUT_TEST(LargeGroups) {
  CheckProblem(Problem<float>(HeadTailTree(700, 90, 9, 5), 33, 301, 1));
  CheckProblem(Problem<float>(TwoLevelTree(1200, 3), 100, 150, 2, false, false));
  CheckProblem(Problem<bfloat16>(TwoLevelTree(600, 2), 50, 301, 3));
  CheckProblem(Problem<float>(TwoLevelTree(2100, 1), 200, 90, 4));  // wider than one block of online columns
}

LARGEOUT_TEST(HuffmanTrees) {
  for (const int64_t arity : {2, 8}) CheckProblem(Problem<float>(HuffmanTree(1000, arity), 20, 252, arity));
}

// Several nodes without a parent, at several depths: what one device has of a tree that is cut over devices.
LARGEOUT_TEST(Forests) {
  Random random(8);
  for (const int removed : {1, 2, 5, 20}) {
    CheckProblem(Problem<float>(Forest(HuffmanTree(1000, 3), removed), 12, 200, removed));
    CheckProblem(Problem<float>(Forest(HeadTailTree(700, 90, 9, 5), removed), 36, 301, removed));
    CheckProblem(Problem<bfloat16>(Forest(RandomTree(600, 40, &random), removed), 17, 90, removed));
  }
  CheckProblem(Problem<float>(Forest(TwoLevelTree(1200, 6), 1), 100, 150, 2, false, false));
}

LARGEOUT_TEST(EmptyBatch) {
  for (const int64_t scratch : {-1, 1000}) {
    SerialParallel serial;
    const auto r = Compute(Problem<float>(HuffmanTree(10, 3), 4, 0, 1), &serial, scratch);
    CHECK_TRUE(r.loss.empty() && r.rows.empty());
    Problem<float> skipped(HuffmanTree(10, 3), 4, 5, 1);
    std::fill(skipped.weights.begin(), skipped.weights.end(), 0.f);
    const auto zeros = Compute(skipped, &serial, scratch);
    CHECK_TRUE(zeros.loss == std::vector<float>(5) && zeros.d_hidden == std::vector<float>(20) && zeros.rows.empty());
  }
}

// Rows without elements: the biases alone decide, or all children are alike.
LARGEOUT_TEST(WidthZero) {
  Random random(6);
  CheckProblem(Problem<float>(RandomTree(507, 100, &random), 0, 37, 1));
  CheckProblem(Problem<float>(HeadTailTree(700, 90, 9, 5), 0, 301, 2));  // split groups
  CheckProblem(Problem<float>(HuffmanTree(1000, 2), 0, 252, 3, false));
  CheckProblem(Problem<bfloat16>(TwoLevelTree(600, 2), 0, 301, 4));
}

LARGEOUT_TEST(BadTargetsAndTrees) {
  const TestTree tree = HuffmanTree(50, 4);
  SerialParallel serial;
  TreePairs pairs;
  int64_t targets[] = {3, 49, 50, -1};
  CHECK_TRUE(BuildTreePairs(tree.arrays(), targets, nullptr, 4, &serial, &pairs) == TreeStatus::kBadTarget);
  CHECK_TRUE(pairs.bad_position == 2);
  const float weights[] = {1, 1, 0, 0};
  CHECK_TRUE(BuildTreePairs(tree.arrays(), targets, weights, 4, &serial, &pairs) == TreeStatus::kOk);
  Random random(5);
  for (int i = 0; i < 3000; ++i) {  // broken arrays are found, or harmless
    TestTree broken = tree;
    std::vector<int32_t>* arrays[] = {&broken.class_row, &broken.node_start, &broken.node_row, &broken.node_parent, &broken.row_hint};
    std::vector<int32_t>& array = *arrays[i % 5];
    array[random.Below(array.size())] = static_cast<int32_t>(random.Below(2) ? random.Below(80) - 10 : random.Next());
    for (int64_t& t : targets) t = random.Below(50);
    const TreeStatus status = BuildTreePairs(broken.arrays(), targets, nullptr, 4, &serial, &pairs);
    CHECK_TRUE(status == TreeStatus::kBadTree || status == TreeStatus::kOk);
    for (size_t p = 0; status == TreeStatus::kOk && p < pairs.row.size(); ++p) CHECK_TRUE(pairs.row[p] < broken.arrays().rows);
  }
}

LARGEOUT_TEST(ExtremeLogits) {
  Problem<float> p(HuffmanTree(40, 8), 3, 6, 9, true, false);
  for (float& x : p.hidden) x *= 300.f;
  SerialParallel serial;
  CheckAgainstReference(p, Compute(p, &serial, -1));
  p.hidden[0] = NAN;
  p.hidden[3] = INFINITY;
  for (const int64_t scratch : {-1, 1 << 20}) {
    const auto r = Compute(p, &serial, scratch);
    CHECK_TRUE(std::isnan(r.loss[0]) && std::isnan(r.loss[1]) && std::isfinite(r.loss[2]) && std::isfinite(r.d_hidden[6]));
  }
  // Classes shut off by a bias of -inf keep the others finite.
  Problem<float> masked(TwoLevelTree(20, 1), 3, 1, 9, true, false);
  masked.targets[0] = 19;
  for (int i = 1; i < 19; ++i) masked.bias[1 + i] = -INFINITY;
  for (const int64_t scratch : {-1, 1 << 20}) CHECK_TRUE(std::isfinite(Compute(masked, &serial, scratch).loss[0]));
}

}  // namespace largeout

int main() { return largeout::TestMain(); }
