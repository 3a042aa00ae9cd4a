// The CPU kernels of exchange.h against one id at a time, and the same bits for 1 and 4 threads.
#include "exchange/exchange.h"

#include <vector>

#include "exchange/exchange_position.h"
#include "exchange/test/exchange_reference.h"

namespace largeout {
namespace {

constexpr PlacementKind kKinds[] = {PlacementKind::kIdentity, PlacementKind::kModulo,
                                    PlacementKind::kPermutation, PlacementKind::kExplicit};

template <typename Id>
Partition Run(const OwnedPlacement& placement, const std::vector<Id>& ids, Parallel* parallel) {
  const int64_t n = static_cast<int64_t>(ids.size());
  Groups groups;
  CHECK_TRUE(GroupByPosition(placement.view, ids.data(), n, parallel, &groups) == -1);
  Partition p;
  p.unique.assign(groups.unique.size(), -7), p.local = p.unique;
  p.inverse.assign(n, -7);
  p.cuts.assign(placement.view.shards + 2, -7);
  WritePartition(placement.view, groups, n, p.unique.data(), p.local.data(), p.inverse.data(), p.cuts.data(),
                 parallel);
  return p;
}

template <typename Id>
void Check(const OwnedPlacement& placement, int64_t n, Random* random) {
  static ThreadParallel four(4);
  SerialParallel one;
  const std::vector<Id> ids = RandomIds<Id>(n, placement.view.rows, random);
  const Partition got = Run(placement, ids, &one);
  CHECK_TRUE(got == TruePartition(placement, ids));
  CHECK_TRUE(got == Run(placement, ids, &four));
}

}  // namespace

LARGEOUT_TEST(EqualsOneIdAtATime) {
  Random random(1);
  for (PlacementKind kind : kKinds) {
    for (int64_t rows : {1, 2, 7, 123, 5000}) {
      for (int64_t shards : {1, 2, 5, 8, 200}) {
        for (int64_t num_hot : {int64_t{0}, int64_t{1}, rows / 3, rows}) {
          const OwnedPlacement placement(kind, rows, shards, num_hot, &random);
          for (int64_t n : {0, 1, 17, 252, 3000}) {
            Check<int32_t>(placement, n, &random);
            Check<int64_t>(placement, n, &random);
          }
        }
      }
    }
  }
}

// Enough ids for several chunks of the sort, and several ranges of every loop.
LARGEOUT_TEST(ManyIds) {
  Random random(2);
  for (PlacementKind kind : kKinds)
    Check<int64_t>(OwnedPlacement(kind, 3000, 8, 100, &random), 100000, &random);
}

// Positions that need more than 32 bits; 3e9 * 3e9 just fits 63.
LARGEOUT_TEST(ManyRows) {
  SerialParallel one;
  const int64_t rows = 3000000000, hot[] = {5, rows - 1}, offsets[] = {2, 2 + rows / 2, 2 + rows};
  const std::vector<int64_t> ids = {rows - 2, 5, 0, rows - 1, rows, int64_t{1} << 62, -1};
  PlacementView view = {PlacementKind::kPermutation, rows, 2, rows - 1, rows - 1, offsets, nullptr, hot, 2};
  Groups groups;
  CHECK_TRUE(GroupByPosition(view, ids.data(), 7, &one, &groups) == -1);
  // (-1 * i - 1) mod rows, and two hot rows before the others.
  CHECK_TRUE((groups.unique == std::vector<int64_t>{0, 1, 2 + 1, 2 + rows - 1}));
  CHECK_TRUE((groups.order == std::vector<int32_t>{1, 3, 0, 2}));
}

LARGEOUT_TEST(Divides) {
  Random random(3);
  for (int64_t d :
       {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{1} << 31, int64_t{2999999999}, INT64_MAX}) {
    const Divisor divisor(d);
    for (int i = 0; i < 1000; ++i) {
      const uint64_t unsigned_d = static_cast<uint64_t>(d),
                     multiple = random.Next() / unsigned_d * unsigned_d;
      for (uint64_t x : {random.Next(), multiple, multiple - 1, uint64_t(i), ~uint64_t{0}}) {
        uint64_t rest;
        CHECK_TRUE(divisor.Divide(x, &rest) == x / unsigned_d && rest == x % unsigned_d);
      }
    }
  }
}

LARGEOUT_TEST(NamesTheFirstBadPosition) {
  ThreadParallel four(4);
  Random random(4);
  OwnedPlacement placement(PlacementKind::kExplicit, 5000, 4, 0, &random);
  std::vector<int32_t> ids(50000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 5000);
  for (int64_t bad : {int64_t{-1}, int64_t{5000}, int64_t{1} << 40}) {
    placement.position_of[4321] = placement.position_of[4999] = bad;
    Groups groups;
    CHECK_TRUE(GroupByPosition(placement.view, ids.data(), 50000, &four, &groups) == 4321);
    CHECK_TRUE(groups.unique.empty() && groups.starts.empty());
  }
}

LARGEOUT_TEST(FindsTheFirstBadHotRow) {
  const auto bad = [](std::vector<int64_t> hot) {
    return FirstBadHot(hot.data(), static_cast<int64_t>(hot.size()), 9);
  };
  CHECK_TRUE(bad({}) == -1 && bad({0, 1, 8}) == -1);
  CHECK_TRUE(bad({-1, 3}) == 0 && bad({3, 3}) == 1 && bad({3, 2}) == 1 && bad({3, 9}) == 1);
}

}  // namespace largeout
