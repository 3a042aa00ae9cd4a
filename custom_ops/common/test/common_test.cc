// Tests of what the families share: grouping, threads, bfloat16, level selection.
#include <algorithm>
#include <atomic>
#include <vector>

#include "common/bfloat16.h"
#include "common/isa.h"
#include "common/parallel.h"
#include "common/sort.h"
#include "common/test/check.h"
#include "common/test/test_call.h"

namespace largeout {

LARGEOUT_TEST(GroupsAreStableAndSkipNegatives) {
  const std::vector<int64_t> ids = {7, -1, 3, 7, int64_t{1} << 40, 3, 0};
  Groups g;
  GroupIds(ids.data(), static_cast<int64_t>(ids.size()), &g);
  CHECK_TRUE((g.unique == std::vector<int64_t>{0, 3, 7, int64_t{1} << 40}));
  CHECK_TRUE((g.starts == std::vector<int64_t>{0, 1, 3, 5, 6}));
  CHECK_TRUE((g.order == std::vector<int32_t>{6, 2, 5, 0, 3, 4}));
}

LARGEOUT_TEST(ScratchIsAlignedAndStays) {
  TestCall<CpuCall> call(2);
  CHECK_TRUE(call.get().parallel->threads() == 2);
  char* first = call.get().scratch->Take<char>(100);
  first[99] = 7;
  for (int64_t n : {0, 1, 64, 100000}) {
    const int32_t* next = call.get().scratch->Take<int32_t>(n);
    CHECK_TRUE(next != nullptr && reinterpret_cast<uintptr_t>(next) % 64 == 0);
  }
  CHECK_TRUE(first[99] == 7);
}

LARGEOUT_TEST(GroupsOfNothing) {
  Groups g;
  GroupIds<int32_t>(nullptr, 0, &g);
  CHECK_TRUE(g.unique.empty() && g.order.empty() && g.starts.size() == 1);
  CHECK_TRUE(StrictlyIncreasing<int32_t>(nullptr, 0));
  const int32_t ids[] = {0, 0};
  CHECK_TRUE(!StrictlyIncreasing(ids, 2) && StrictlyIncreasing(ids, 1));
}

// Sizes and ranges on both sides of every switch: comparison sort, digits, packed and wide items, chunks of threads.
LARGEOUT_TEST(GroupsEqualAStableSort) {
  Random random(1);
  ThreadParallel four(4);
  for (int64_t n : {1, 100, 255, 256, 5000, 40000, 140000}) {
    for (int bits : {1, 8, 20, 24, 32, 33, 47, 62}) {
      std::vector<int64_t> ids(n), positions;
      for (int64_t& id : ids) {
        id = static_cast<int64_t>(random.Next() & ((uint64_t{1} << bits) - 1));
        if (random.Below(3) == 0) id = random.Below(2) == 0 ? -1 - random.Below(5) : random.Below(40);
      }
      for (int64_t i = 0; i < n; ++i) {
        if (ids[i] >= 0) positions.push_back(i);
      }
      std::stable_sort(positions.begin(), positions.end(), [&](int64_t x, int64_t y) { return ids[x] < ids[y]; });
      std::vector<int32_t> values(n);
      for (int32_t& value : values) value = static_cast<int32_t>(random.Next());
      for (Parallel* parallel : {static_cast<Parallel*>(nullptr), static_cast<Parallel*>(&four)}) {
        Groups g;
        GroupIds(ids.data(), n, &g, parallel);
        CHECK_TRUE(std::equal(positions.begin(), positions.end(), g.order.begin(), g.order.end()));
        Groups valued;
        GroupIds(ids.data(), n, &valued, parallel, values.data());
        CHECK_TRUE(valued.unique == g.unique && valued.starts == g.starts);
        CHECK_TRUE(std::equal(g.order.begin(), g.order.end(), valued.order.begin(), valued.order.end(),
                              [&](int32_t position, int32_t value) { return values[position] == value; }));
        CHECK_TRUE(StrictlyIncreasing(g.unique.data(), static_cast<int64_t>(g.unique.size())));
        CHECK_TRUE(g.starts.size() == g.unique.size() + 1 && g.starts.front() == 0);
        CHECK_TRUE(g.starts.back() == static_cast<int64_t>(g.order.size()));
        for (size_t k = 0; k < g.unique.size(); ++k) {
          CHECK_TRUE(g.starts[k] < g.starts[k + 1]);
          for (int64_t i = g.starts[k]; i < g.starts[k + 1]; ++i) CHECK_TRUE(ids[g.order[i]] == g.unique[k]);
        }
      }
    }
  }
}

// Nothing to sort by, every chunk of a thread within one group, and none but negative ids in a chunk.
LARGEOUT_TEST(GroupsOfOneId) {
  constexpr int64_t kIds = 200000;
  ThreadParallel three(3);
  std::vector<int64_t> ids(kIds, 5);
  Groups g;
  GroupIds(ids.data(), kIds, &g, &three);
  CHECK_TRUE((g.unique == std::vector<int64_t>{5}) && (g.starts == std::vector<int64_t>{0, kIds}));
  CHECK_TRUE(StrictlyIncreasing(g.order.data(), kIds));
  ids.back() = 3;
  GroupIds(ids.data(), kIds, &g, &three);
  CHECK_TRUE((g.unique == std::vector<int64_t>{3, 5}) && (g.starts == std::vector<int64_t>{0, 1, kIds}));
  CHECK_TRUE(g.order.front() == kIds - 1 && StrictlyIncreasing(g.order.data() + 1, kIds - 1));
  std::fill(ids.begin(), ids.end() - 1, -1);
  GroupIds(ids.data(), kIds, &g, &three);
  CHECK_TRUE((g.unique == std::vector<int64_t>{3}) && (g.order == std::vector<int32_t>{kIds - 1}));
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
  CHECK_TRUE(SetIsa(Isa::kV4Bfloat16) == BestIsa());
}

}  // namespace largeout
