// Tests of ExchangeCpu and ExchangeGpu against one id at a time: the same bits for 1 and 4 threads, and for
// two runs.
#ifndef LARGEOUT_EXCHANGE_EXCHANGE_CASES_H_
#define LARGEOUT_EXCHANGE_EXCHANGE_CASES_H_

#include <vector>

#include "common/test/test_call.h"
#include "exchange/test/exchange_reference.h"

namespace largeout {

inline constexpr PlacementKind kAllKinds[] = {PlacementKind::kIdentity, PlacementKind::kModulo,
                                              PlacementKind::kPermutation, PlacementKind::kExplicit};

// Runs the plan, and the outputs where it found no fault.
template <typename Device, typename Id>
PartitionFault RunPartition(const OwnedPlacement& placement, const std::vector<Id>& host_ids, bool check_ids,
                            Partition* p, int threads = 1) {
  const ArrayOf<Device, Id> ids(host_ids);
  const ArrayOf<Device, int64_t> position_of(placement.position_of), hot(placement.hot);
  const int64_t n = static_cast<int64_t>(host_ids.size());
  PlacementView view = placement.view;
  view.position_of = position_of.get(), view.hot = hot.get();
  TestCall<typename Device::Call> call(threads);
  Device device(call.get());
  PartitionFault fault;
  p->cuts.assign(view.shards + 2, -7);
  CHECK_TRUE(device.Plan(view, ids.get(), n, check_ids, p->cuts.data(), &fault) == 0);
  if (fault.any()) return fault;
  const auto sevens = [](int64_t size) { return std::vector<int64_t>(size, -7); };
  const ArrayOf<Device, int64_t> unique(sevens(device.num_unique())), local(sevens(device.num_unique()));
  const ArrayOf<Device, int32_t> inverse(std::vector<int32_t>(n, -7));
  CHECK_TRUE(device.Write(unique.get(), local.get(), inverse.get()) == 0);
  p->unique = unique.Host(), p->local = local.Host(), p->inverse = inverse.Host();
  return fault;
}

template <typename Device, typename Id>
void CheckPartition(const OwnedPlacement& placement, int64_t n, Random* random) {
  const std::vector<Id> ids = RandomIds<Id>(n, placement.view.rows, random);
  Partition got, again, unused;
  CHECK_TRUE((!RunPartition<Device>(placement, ids, false, &got).any()));
  CHECK_TRUE(got == TruePartition(placement, ids));
  RunPartition<Device>(placement, ids, false, &again, 4);
  CHECK_TRUE(got == again);
  int64_t first = -1;
  for (int64_t i = n - 1; i >= 0; --i) {
    if (ids[i] < 0 || ids[i] >= placement.view.rows) first = i;
  }
  const PartitionFault fault = RunPartition<Device>(placement, ids, true, &unused);
  CHECK_TRUE(fault.id == first && fault.hot == -1 && fault.position == -1);
  CHECK_TRUE(first == -1 || fault.row == ids[first]);
}

template <typename Device>
void EqualsOneIdAtATime() {
  Random random(1);
  for (PlacementKind kind : kAllKinds) {
    for (int64_t rows : SizesFor<Device>({1, 2, 7, 123, 5000}, {1, 7, 123, 5000})) {
      for (int64_t shards : SizesFor<Device>({1, 2, 5, 8, 200}, {1, 5, 8, 300})) {
        for (int64_t num_hot : SizesFor<Device>({0, 1, rows / 3, rows}, {0, rows / 3, rows})) {
          const OwnedPlacement placement(kind, rows, shards, num_hot, &random);
          for (int64_t n : SizesFor<Device>({0, 1, 17, 252, 3000}, {0, 1, 252, 1000})) {
            CheckPartition<Device, int32_t>(placement, n, &random);
            CheckPartition<Device, int64_t>(placement, n, &random);
          }
        }
      }
    }
  }
}

// Enough ids for several chunks of the sort, and several ranges of every loop.
template <typename Device>
void ManyIds() {
  Random random(2);
  for (PlacementKind kind : kAllKinds)
    CheckPartition<Device, int64_t>(OwnedPlacement(kind, 3000, 8, 100, &random), 100000, &random);
}

// Positions that need more than 32 bits; 3e9 * 3e9 just fits 63.
template <typename Device>
void ManyRows() {
  const int64_t rows = 3000000000;
  Random random(3);
  OwnedPlacement placement(PlacementKind::kPermutation, 9, 2, 0, &random);
  placement.offsets = {2, 2 + rows / 2, 2 + rows}, placement.hot = {5, rows - 1};
  placement.view = {
      PlacementKind::kPermutation, rows, 2, rows - 1, rows - 1, placement.offsets.data(), nullptr,
      placement.hot.data(),        2};
  const std::vector<int64_t> ids = {rows - 2, 5, 0, rows - 1, rows, int64_t{1} << 62, -1};
  Partition got;
  CHECK_TRUE((!RunPartition<Device>(placement, ids, false, &got).any()));
  // (-1 * i - 1) mod rows, and two hot rows before the others.
  CHECK_TRUE((got.unique == std::vector<int64_t>{0, 1, 2 + 1, 2 + rows - 1}));
  CHECK_TRUE((got.inverse == std::vector<int32_t>{2, 0, 3, 1, -1, -1, -1}));
}

// Keys of 64 bits: room for more positions than 32 bits have.
template <typename Device>
void ManyPositions() {
  Random random(3);
  OwnedPlacement placement(PlacementKind::kExplicit, 5000, 4, 0, &random);
  placement.offsets[3] = int64_t{1} << 33, placement.offsets[4] = int64_t{1} << 34;
  for (int64_t& position : placement.position_of) position += position % 2 << 33;
  CheckPartition<Device, int64_t>(placement, 1000, &random);
}

template <typename Device>
void NamesTheFirstBadValue() {
  Random random(4);
  Partition unused;
  std::vector<int32_t> ids(50000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 5000);
  OwnedPlacement placement(PlacementKind::kExplicit, 5000, 4, 0, &random);
  for (int64_t bad : {int64_t{-1}, int64_t{5000}, int64_t{1} << 40}) {
    placement.position_of[4321] = placement.position_of[4999] = bad;
    const PartitionFault fault = RunPartition<Device>(placement, ids, true, &unused, 4);
    CHECK_TRUE(fault.position == 4321 && fault.row == 4321 && fault.value == bad);
  }
  OwnedPlacement hot(PlacementKind::kModulo, 5000, 4, 1000, &random);
  for (int64_t bad : {int64_t{-1}, int64_t{5000}, hot.hot[699]}) {
    hot.hot[700] = bad;
    for (const std::vector<int32_t>& some : {ids, std::vector<int32_t>()}) {
      const PartitionFault fault = RunPartition<Device>(hot, some, true, &unused);
      CHECK_TRUE(fault.hot == 700 && fault.row == bad);
    }
  }
}

}  // namespace largeout

#define LARGEOUT_EXCHANGE_CASES(Device)     \
  LARGEOUT_CASE(EqualsOneIdAtATime, Device) \
  LARGEOUT_CASE(ManyIds, Device)            \
  LARGEOUT_CASE(ManyRows, Device)           \
  LARGEOUT_CASE(ManyPositions, Device)      \
  LARGEOUT_CASE(NamesTheFirstBadValue, Device)

#endif  // LARGEOUT_EXCHANGE_EXCHANGE_CASES_H_
