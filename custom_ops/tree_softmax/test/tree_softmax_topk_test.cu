// TreeTopKCuda against the CPU search: scores one by one, ids where no two scores are close. Exit code 77
// without a GPU.
#include <cmath>

#include "common/parallel.h"
#include "tree_softmax/test/tree_softmax_cuda_testing.cuh"

namespace largeout {
namespace {

template <typename Id>
struct TopKResult {
  bool ok = false;
  std::vector<float> log_probs;
  std::vector<Id> ids;
};

template <typename Id, typename T>
TopKResult<Id> CudaTopK(const CudaProblem<T>& p, int64_t k, const std::vector<int32_t>& row_child) {
  const GpuTree tree(p.tree);
  const GpuArray<int32_t> children(row_child);
  const GpuArray<T> table(p.table);
  const GpuArray<float> hidden(p.hidden), bias(p.bias), log_probs(p.tokens * k);
  const GpuArray<Id> ids(p.tokens * k);
  FreshScratch scratch;
  TopKResult<Id> r;
  CUDA_OK(
      (TreeTopKCuda<T, Id>(tree.arrays(), children.data(), {table.data(), bias.data(), p.dim}, hidden.data(),
                           p.tokens, k, log_probs.data(), ids.data(), &scratch, nullptr, &r.ok)));
  CUDA_OK(cudaDeviceSynchronize());
  r.log_probs = log_probs.Download(), r.ids = ids.Download();
  return r;
}

template <typename Id, typename T>
void CheckTopK(const CudaProblem<T>& p, int64_t k) {
  const TopKResult<Id> r = CudaTopK<Id>(p, k, p.tree.row_child), again = CudaTopK<Id>(p, k, p.tree.row_child);
  CHECK_TRUE(r.ok && again.ok && r.ids == again.ids && StepResult<T>::Bits(r.log_probs, again.log_probs));
  std::vector<float> want(p.tokens * k);
  std::vector<Id> ids(p.tokens * k);
  SerialParallel parallel;
  CHECK_TRUE(TreeTopK(p.arrays, p.tree.row_child.data(), p.Table(), p.hidden.data(), p.tokens, k, want.data(),
                      ids.data(), &parallel));
  for (int64_t t = 0; t < p.tokens; ++t) {
    std::vector<char> seen(p.arrays.classes);
    for (int64_t i = t * k; i < (t + 1) * k; ++i) {
      CHECK_CLOSE(r.log_probs[i], want[i], 5e-6);
      const bool in_range = r.ids[i] >= 0 && r.ids[i] < p.arrays.classes;
      CHECK_TRUE(in_range && !seen[r.ids[i]]);
      if (in_range) seen[r.ids[i]] = 1;
      const auto apart = [&](int64_t a, int64_t b) {  // beyond rounding; what follows the k-th is not known
        return a < t * k || (b < (t + 1) * k && want[a] - want[b] > 1e-4f * (1.f + std::fabs(want[a])));
      };
      if (apart(i - 1, i) && apart(i, i + 1)) CHECK_TRUE(r.ids[i] == ids[i]);
    }
  }
}

}  // namespace

LARGEOUT_TEST(TopKIsExact) {
  Random random(11);
  for (const int64_t dim : {1, 17, 64}) {
    CheckTopK<int32_t>(CudaProblem<float>(RandomTree(507, 100, &random), dim, 29, dim), 10);
    CheckTopK<int64_t>(CudaProblem<bfloat16>(RandomTree(252, 100, &random), dim, 5, dim), 252);
    CheckTopK<int64_t>(CudaProblem<float>(HuffmanTree(123, 3), dim, 30, dim, false), 1);
    CheckTopK<int32_t>(CudaProblem<float>(TwoLevelTree(3000, 1), dim, 3, dim),
                       3);  // more children than fit at once
  }
  CheckTopK<int32_t>(CudaProblem<float>(TwoLevelTree(1, 1), 4, 2, 1), 1);
  CheckTopK<int32_t>(CudaProblem<float>(HuffmanTree(123, 3), 0, 5, 1), 20);  // the biases alone decide
  CheckTopK<int32_t>(CudaProblem<bfloat16>(HuffmanTree(900, 8), 8, 6, 2),
                     700);  // the k best in device memory
}

// A flat distribution opens more nodes than the heap in shared memory holds: the second search must answer.
LARGEOUT_TEST(OverflowStaysExact) {
  NodeChildren nodes;
  AddBalanced(0, 5000, 2, &nodes);
  CudaProblem<float> p(TestTree::From(nodes, 5000), 4, 3, 1, false);
  for (float& x : p.table) x *= 0.01f;
  CheckTopK<int32_t>(p, 4);
}

LARGEOUT_TEST(TiesNaNAndBrokenTrees) {
  CudaProblem<float> p(TwoLevelTree(64, 8), 5, 3, 1, false);
  std::fill(p.table.begin(), p.table.end(), 0.f);  // every class ties
  p.hidden[0] = NAN;
  const auto r = CudaTopK<int32_t>(p, 9, p.tree.row_child);
  CHECK_TRUE(r.ok);
  for (int i = 0; i < 27; ++i) {
    if (i < 9) CHECK_TRUE(std::isnan(r.log_probs[i]));
    if (i >= 9) CHECK_TRUE(r.ids[i] == i % 9);
  }
  std::vector<int32_t> broken = p.tree.row_child;
  broken[2] = ~0;  // a cycle
  CHECK_TRUE(!CudaTopK<int32_t>(p, 9, broken).ok);
  broken[2] = 64;  // no such class
  CHECK_TRUE(!CudaTopK<int32_t>(p, 9, broken).ok);
  CudaProblem<float> masked(TwoLevelTree(3000, 1), 3, 2, 9, true);  // the first chunk of logits is all -inf
  for (int i = 1; i < 2000; ++i) masked.bias[i] = -INFINITY;
  CheckTopK<int32_t>(masked, 5);
  CHECK_TRUE(
      (CudaTopK<int32_t>(CudaProblem<float>(HuffmanTree(10, 3), 4, 0, 1), 2, HuffmanTree(10, 3).row_child)
           .ok));
}

}  // namespace largeout

int main() { return largeout::HasGpu() ? largeout::TestMain() : 77; }
