// Steps whose products of a wide root are those of cuBLASLt, against the kernels of wide nodes.
#include "common/test/library_testing.cuh"
#include "tree_softmax/test/tree_softmax_cases.h"

namespace largeout {
namespace {

template <typename T, typename H>
StepResult<T, H> ByLibrary(const Problem<T, H>& p, int64_t scratch_bytes, const StepWay& way = {}) {
  const AllowTf32 tf32;
  const AllowLibrary library;
  return Step<TreeSoftmaxGpu>(p, scratch_bytes, way);
}

// The CPU rounds no factors. One of two may come to the other side of where a value of the type ends.
template <typename X>
void CheckClose(const std::vector<X>& got, const std::vector<X>& by_kernels, const std::vector<X>& of_cpu) {
  std::vector<double> want;
  for (const X x : of_cpu) want.push_back(ToFloat(x));
  CHECK_TRUE(got.size() == want.size());
  CheckAsClose(got, by_kernels, want, 1.1, 2e-5 + (sizeof(X) == 2 ? 1.0 / 256 : 0.0));
}

template <typename T, typename H>
void Check(const Problem<T, H>& p) {
  for (const int64_t scratch : {int64_t{1} << 28, int64_t{20000}}) {
    const StepResult<T, H> got = ByLibrary(p, scratch), want = Step<TreeSoftmaxCpu>(p, scratch);
    StepResult<T, H> by_kernels;
    {
      const AllowTf32 tf32;
      by_kernels = Step<TreeSoftmaxGpu>(p, scratch);
    }
    CHECK_TRUE(got == ByLibrary(p, scratch, {1, got.paths.pairs + 37, true}));
    CHECK_TRUE(got.pair_token == want.pair_token && got.pair_row == want.pair_row && got.rows == want.rows);
    CheckClose(got.loss, by_kernels.loss, want.loss);
    CheckClose(got.lse, by_kernels.lse, want.lse);
    CheckClose(got.d_hidden, by_kernels.d_hidden, want.d_hidden);
    CheckClose(got.row_grads, by_kernels.row_grads, want.row_grads);
    CheckClose(got.bias_grads, by_kernels.bias_grads, want.bias_grads);
  }
}

LARGEOUT_TEST(RootsOfEveryTree) {
  if (FoundLibrary() == nullptr) return;
  const int64_t times = kEmulated ? 1 : 10, tokens = kEmulated ? 70 : 700;
  for (const auto& tree : {FlatTree(130 * times), TwoLevelTree(300 * times, 110 * times),
                           HeadTailTree(250 * times, 120 * times, 9, 5)}) {
    for (const bool all : {false, true}) {  // some tokens have no pair
      Check(Problem<float>(tree, 20, tokens, 4, true, !all));
      Check(Problem<float, bfloat16>(tree, 24, tokens, 5, all, !all));
      Check(Problem<bfloat16, bfloat16>(tree, 24, tokens, 6, !all, !all));
    }
  }
}

// Roots of one level: wide ones, then narrow ones too.
LARGEOUT_TEST(RootsOfForests) {
  if (FoundLibrary() == nullptr) return;
  const int64_t times = kEmulated ? 1 : 10, tokens = kEmulated ? 200 : 2000;
  for (const int32_t removed : {1, 2}) {
    Check(Problem<float>(Forest(TwoLevelTree(360 * times, 3), removed), 20, tokens, 4));
    Check(Problem<bfloat16, bfloat16>(Forest(HeadTailTree(250 * times, 3, 4, 60 * times), removed), 24, tokens, 5));
  }
}

LARGEOUT_TEST(SmallRootsAndFewTokens) {
  if (FoundLibrary() == nullptr) return;
  Check(Problem<float>(HuffmanTree(300, 4), 20, 60, 3));
  Check(Problem<float>(FlatTree(333), 20, 5, 3));
  Check(Problem<float>(FlatTree(333), 0, 60, 3));
}

#ifdef LARGEOUT_EMULATE_CUDA
LARGEOUT_TEST(ProductsAreTheLibrarys) {
  const auto products = [](const auto& p, int64_t scratch) {
    const int64_t before = emulation::Products();
    ByLibrary(p, scratch);
    return emulation::Products() - before;
  };
  CHECK_TRUE(FoundLibrary() != nullptr);
  const Problem<float> flat(FlatTree(333), 20, 60, 3), narrow(HuffmanTree(300, 4), 20, 60, 3);
  const Problem<bfloat16, float> large_hidden(FlatTree(333), 20, 60, 3);
  CHECK_TRUE(products(flat, 20000) == 4);
  CHECK_TRUE(products(flat, -1) == 0);  // probabilities are saved, and read
  CHECK_TRUE(products(narrow, 20000) == 0);
  CHECK_TRUE(products(large_hidden, 20000) == 0);
  const Problem<float> two_roots(Forest(TwoLevelTree(360, 3), 1), 20, 300, 3);
  CHECK_TRUE(products(two_roots, 20000) == 0);
}
#endif

}  // namespace
}  // namespace largeout
