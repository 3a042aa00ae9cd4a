// Top-k against the sorted log probabilities of all classes in float64.
#include "common/test/check.h"
#include "common/isa.h"
#include "tree_softmax/tree_softmax.h"
#include "tree_softmax/test/tree_softmax_problem.h"

namespace largeout {

template <typename T>
void CheckTopK(const Problem<T>& p, int64_t k) {
  std::vector<float> log_probs(p.tokens * k);
  std::vector<int64_t> ids(p.tokens * k), again(p.tokens * k);
  ThreadParallel threads(3);
  SerialParallel serial;
  CHECK_TRUE(TreeTopK(p.arrays, p.tree.row_child.data(), p.Table(), p.hidden.data(), p.tokens, k, log_probs.data(), again.data(), &threads));
  CHECK_TRUE(TreeTopK(p.arrays, p.tree.row_child.data(), p.Table(), p.hidden.data(), p.tokens, k, log_probs.data(), ids.data(), &serial));
  CHECK_TRUE(ids == again);
  for (int64_t t = 0; t < p.tokens; ++t) {
    std::vector<double> row_log_prob(p.arrays.rows);
    for (int64_t n = 0; n < p.arrays.nodes; ++n) {
      const double above = n == 0 ? 0.0 : row_log_prob[p.arrays.node_row[n]];
      const auto here = NodeLogProbs(p, n, t);
      for (size_t j = 0; j < here.size(); ++j) row_log_prob[p.arrays.node_start[n] + j] = above + here[j];
    }
    std::vector<std::pair<double, int64_t>> best;
    for (int64_t c = 0; c < p.arrays.classes; ++c) best.push_back({-row_log_prob[p.arrays.class_row[c]], c});
    std::sort(best.begin(), best.end());
    std::vector<char> seen(p.arrays.classes);
    for (int64_t i = 0; i < k; ++i) {
      const int64_t id = ids[t * k + i];
      CHECK_TRUE(id >= 0 && id < p.arrays.classes && !seen[id]);
      seen[id] = 1;
      CHECK_CLOSE(log_probs[t * k + i], -best[i].first, 3e-6);
      CHECK_CLOSE(log_probs[t * k + i], row_log_prob[p.arrays.class_row[id]], 3e-6);
      if (i > 0) CHECK_TRUE(log_probs[t * k + i] <= log_probs[t * k + i - 1]);
    }
  }
}

LARGEOUT_TEST(TopKIsExact) {
  Random random(11);
  for (const Isa isa : {Isa::kGeneric, Isa::kV3, Isa::kV4}) {
    if (SetIsa(isa) != isa) continue;
    for (const int64_t dim : {1, 17, 64}) {
      CheckTopK(Problem<float>(RandomTree(507, 100, &random), dim, 29, dim), 10);
      CheckTopK(Problem<bfloat16>(RandomTree(252, 100, &random), dim, 5, dim), 252);
      CheckTopK(Problem<float>(HuffmanTree(123, 3), dim, 30, dim, false), 1);
      CheckTopK(Problem<float>(TwoLevelTree(3000, 1), dim, 3, dim), 3);
    }
  }
  CheckTopK(Problem<float>(TwoLevelTree(1, 1), 4, 2, 1), 1);
  CheckTopK(Problem<float>(HuffmanTree(123, 3), 0, 5, 1), 20);  // the biases alone decide
  SetIsa(Isa::kV4);
}

LARGEOUT_TEST(TopKOfTiesAndNaN) {
  Problem<float> p(TwoLevelTree(64, 8), 5, 3, 1, false);
  std::fill(p.table.begin(), p.table.end(), 0.f);  // every class ties
  p.hidden[0] = NAN;
  SerialParallel serial;
  std::vector<float> log_probs(3 * 9);
  std::vector<int32_t> ids(3 * 9);
  CHECK_TRUE(TreeTopK(p.arrays, p.tree.row_child.data(), p.Table(), p.hidden.data(), 3, 9, log_probs.data(), ids.data(), &serial));
  for (int i = 0; i < 27; ++i) {
    if (i < 9) CHECK_TRUE(std::isnan(log_probs[i]));
    if (i >= 9) CHECK_TRUE(ids[i] == i % 9);
  }
  std::vector<int32_t> broken = p.tree.row_child;
  broken[2] = ~0;  // a cycle
  CHECK_TRUE(!TreeTopK(p.arrays, broken.data(), p.Table(), p.hidden.data(), 1, 9, log_probs.data(), ids.data(), &serial));
}

}  // namespace largeout

int main() { return largeout::TestMain(); }
