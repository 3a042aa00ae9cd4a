// Tests of what the families share: grouping, threads, bfloat16, level selection.
#include <atomic>
#include <vector>

#include "common/bfloat16.h"
#include "common/check.h"
#include "common/isa.h"
#include "common/parallel.h"
#include "common/sort.h"

namespace largeout {

LARGEOUT_TEST(GroupsAreStableAndSkipNegatives) {
  const std::vector<int64_t> ids = {7, -1, 3, 7, int64_t{1} << 40, 3, 0};
  Groups g;
  GroupIds(ids.data(), static_cast<int64_t>(ids.size()), &g);
  CHECK_TRUE((g.unique == std::vector<int64_t>{0, 3, 7, int64_t{1} << 40}));
  CHECK_TRUE((g.starts == std::vector<int64_t>{0, 1, 3, 5, 6}));
  CHECK_TRUE((g.order == std::vector<int32_t>{6, 2, 5, 0, 3, 4}));
}

LARGEOUT_TEST(GroupsOfNothing) {
  Groups g;
  GroupIds<int32_t>(nullptr, 0, &g);
  CHECK_TRUE(g.unique.empty() && g.order.empty() && g.starts.size() == 1);
  CHECK_TRUE(StrictlyIncreasing<int32_t>(nullptr, 0));
  const int32_t ids[] = {0, 0};
  CHECK_TRUE(!StrictlyIncreasing(ids, 2) && StrictlyIncreasing(ids, 1));
}

LARGEOUT_TEST(EveryUnitRunsOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadParallel parallel(threads);
    for (int64_t n : {0, 1, 7, 1000}) {
      std::vector<std::atomic<int>> seen(n);
      for (int round = 0; round < 20; ++round) {
        parallel.For(n, 1000000, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++seen[i];
        });
      }
      for (int64_t i = 0; i < n; ++i) CHECK_TRUE(seen[i] == 20);
    }
  }
}

LARGEOUT_TEST(Bfloat16RoundsToNearestEven) {
  bfloat16 b;
  FromFloat(1.00390625f, &b);  // half way between 1 and 1.0078125: to even
  CHECK_TRUE(ToFloat(b) == 1.0f);
  FromFloat(1.01171875f, &b);
  CHECK_TRUE(ToFloat(b) == 1.015625f);
  FromFloat(NAN, &b);
  CHECK_TRUE(std::isnan(ToFloat(b)));
}

LARGEOUT_TEST(LevelsAreLoweredToTheMachine) {
  CHECK_TRUE(SetIsa(Isa::kGeneric) == Isa::kGeneric && CurrentIsa() == Isa::kGeneric);
  CHECK_TRUE(SetIsa(Isa::kV4) == BestIsa());
}

}  // namespace largeout

int main() { return largeout::TestMain(); }
