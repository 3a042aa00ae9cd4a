#include "exchange/exchange.h"

#include "exchange/exchange_position.h"
#include "exchange/test/exchange_cases.h"

namespace largeout {

LARGEOUT_EXCHANGE_CASES(ExchangeCpu)

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

LARGEOUT_TEST(ABadPositionLeavesTheGroupsAlone) {
  Random random(4);
  OwnedPlacement placement(PlacementKind::kExplicit, 5000, 4, 0, &random);
  placement.position_of[4321] = -1;
  const std::vector<int32_t> ids = {0, 4321, 1};
  TestCall<CpuCall> call;
  ExchangeCpu device(call.get());
  std::vector<int64_t> cuts(6);
  PartitionFault fault;
  CHECK_TRUE(device.Plan(placement.view, ids.data(), 3, /*check_ids=*/true, cuts.data(), &fault) == 0);
  CHECK_TRUE(fault.position == 1 && fault.row == 4321 && fault.value == -1 && device.num_unique() == 0);
}

LARGEOUT_TEST(FindsTheFirstBadHotRow) {
  const auto bad = [](std::vector<int64_t> hot) {
    return FirstBadHot(hot.data(), static_cast<int64_t>(hot.size()), 9);
  };
  CHECK_TRUE(bad({}) == -1 && bad({0, 1, 8}) == -1);
  CHECK_TRUE(bad({-1, 3}) == 0 && bad({3, 3}) == 1 && bad({3, 2}) == 1 && bad({3, 9}) == 1);
}

}  // namespace largeout
