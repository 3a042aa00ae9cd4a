#include "common/test/cuda_testing.cuh"
#include "tree_softmax/cuda/tree_softmax_plan.h"
#include "tree_softmax/test/tree_softmax_topk_cases.h"

namespace largeout {
LARGEOUT_TREE_TOPK_CASES(TreeSoftmaxGpu)

// Factors of a wide root are rounded where the call allows it.
LARGEOUT_TEST(WideRootsInTf32) {
  constexpr int64_t kBest = 5;
  const Problem<float> p(FlatTree(1500), 40, 150, 1);
  const auto best = [&] { return TopK<TreeSoftmaxGpu, int32_t>(p, kBest, p.tree.row_child); };
  const auto exact = best();
  const AllowTf32 allowed;
  const auto got = best(), again = best();
  CHECK_TRUE(got.ok && !SameBits(got.log_probs, exact.log_probs) &&
             SameBits(got.log_probs, again.log_probs));
  for (size_t i = 0; i < got.log_probs.size(); ++i) CHECK_CLOSE(got.log_probs[i], exact.log_probs[i], 2e-3);
}
}  // namespace largeout
