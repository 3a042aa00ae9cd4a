#include "common/test/cuda_testing.cuh"
#include "common/test/on_stream.cuh"
#include "tree_softmax/cuda/tree_softmax_plan.h"
#include "tree_softmax/test/tree_softmax_cases.h"

namespace largeout {
LARGEOUT_TREE_SOFTMAX_CASES(TreeSoftmaxGpu)

// Factors of wide nodes of float32 are rounded where the call allows it, those of narrow nodes never.
LARGEOUT_TEST(EqualsExactProductsInTf32) {
  constexpr double kInTf32 = 2e-3;
  for (const auto& tree : {FlatTree(333), HeadTailTree(700, 90, 9, 5), TwoLevelTree(600, 2)}) {
    const Problem<float> p(tree, 40, 301, 4);
    for (const int64_t scratch : {-1, 20000}) {
      const StepResult<float, float> exact = Step<TreeSoftmaxGpu>(p, scratch);
      const AllowTf32 allowed;
      const StepResult<float, float> got = Step<TreeSoftmaxGpu>(p, scratch);
      CHECK_TRUE(got == Step<TreeSoftmaxGpu>(p, scratch));
      CHECK_TRUE(got.rows == exact.rows && !SameBits(got.loss, exact.loss) &&
                 !SameBits(got.d_hidden, exact.d_hidden) && !SameBits(got.row_grads, exact.row_grads));
      CheckAllClose(got.loss, exact.loss, kInTf32, "loss");
      CheckAllClose(got.d_hidden, exact.d_hidden, kInTf32, "d_hidden");
      CheckAllClose(got.row_grads, exact.row_grads, kInTf32, "row_grads");
      CheckAllClose(got.bias_grads, exact.bias_grads, kInTf32, "bias_grads");
    }
  }
  const Problem<float> narrow(HuffmanTree(1000, 4), 20, 252, 3);
  const auto exact = Step<TreeSoftmaxGpu>(narrow, -1);
  const AllowTf32 allowed;
  CHECK_TRUE(exact == Step<TreeSoftmaxGpu>(narrow, -1));
}

// The loss waits once where it knows about how many pairs will come, and the gradient that goes by its plan
// not at all.
LARGEOUT_TEST(HowOftenAStepWaits) {
  const Problem<float> p(HeadTailTree(700, 90, 9, 5), 12, 301, 1);
  const ProblemOn<TreeSoftmaxGpu, float> on(p);
  const TreeArrays tree = on.arrays();
  const auto waits = [](int64_t want, const auto& work) {
    const int64_t before = OnStream::Waits();
    CUDA_OK(work());
    if (kEmulated) CHECK_TRUE(OnStream::Waits() - before == want);
  };
  TreePaths paths;
  const auto find = [&](OnStream* stream, int64_t likely, TreeSoftmaxGpu* device) {
    return device->FindPaths(tree, on.targets.get(), on.weights, p.tokens, p.dim, likely,
                             stream->call().scratch, &paths);
  };
  for (const int64_t likely : {0, 10}) {
    OnStream stream;
    TreeSoftmaxGpu device(stream.call());
    waits(2, [&] { return find(&stream, likely, &device); });
  }
  OnStream stream;
  TreeSoftmaxGpu loss(stream.call()), gradient(stream.call());
  waits(1, [&] { return find(&stream, paths.pairs + 10, &loss); });
  const OnGpu<float> losses(p.tokens), lse(paths.pairs), probs(paths.probs), d_hidden(p.tokens * p.dim);
  const OnGpu<int32_t> token(paths.pairs), row(paths.pairs), node(paths.groups), start(paths.groups + 1);
  waits(0, [&] {
    return loss.Loss(tree, on.table, on.hidden.get(), on.weights, p.tokens,
                     {losses.get(), token.get(), row.get(), node.get(), start.get(), lse.get(), probs.get()},
                     0);
  });
  const TreeSaved saved{token.get(), row.get(),   node.get(),  start.get(),
                        lse.get(),   probs.get(), paths.pairs, paths.groups};
  CHECK_TRUE(TreeSoftmaxGpu::CanResume<float>(loss.GradientPlan(), true));
  const TreeTouched touched = gradient.Resume(loss.GradientPlan());
  const OnGpu<int64_t> rows(touched.rows);
  const OnGpu<float> row_grads(touched.rows * p.dim), bias_grads(touched.rows);
  waits(0, [&] {
    return gradient.Gradient(tree, on.table, on.hidden.get(), on.weights, on.grad_loss.get(), p.tokens, saved,
                             0, d_hidden.get(), rows.get(), row_grads.get(), bias_grads.get());
  });
  stream.Wait();
}
}  // namespace largeout
