// Tests of records: an update gives the bits of RowUpdate and changes nothing else, a lookup copies bytes.
#ifndef LARGEOUT_ROW_UPDATE_RECORDS_CASES_H_
#define LARGEOUT_ROW_UPDATE_RECORDS_CASES_H_

#include <cstring>
#include <vector>

#include "common/test/levels.h"
#include "common/test/test_call.h"
#include "row_update/records.h"
#include "row_update/row_update_cpu.h"
#include "row_update/test/row_update_cases.h"

namespace largeout {

// The table and the slots of `state` as records of `words` words. What belongs to neither is NaN.
template <typename T>
std::vector<float> Packed(UpdateRule rule, const UpdateState<T>& state, int64_t rows, int64_t dim,
                          int64_t words) {
  const RecordLayout layout = {dim, sizeof(T)};
  std::vector<float> records = Unwritten<float>(rows * words);
  for (int64_t row = 0; row < rows; ++row) {
    float* record = records.data() + row * words;
    std::memcpy(record + RecordLayout::kMarkWords, state.table.data() + row * dim, layout.RowBytes());
    for (int k = 0; k < kUpdateRuleInfo[static_cast<int>(rule)].slots; ++k) {
      const int64_t slot = layout.SlotWords(rule);
      std::memcpy(record + layout.SlotAt(rule, k), state.slots[k].data() + row * slot, slot * sizeof(float));
    }
  }
  return records;
}

template <typename Device, typename T, typename G, typename Id>
BadIndex UpdateRecords(const UpdateProblem<T, G, Id>& p, int64_t words, const std::vector<Id>& ids,
                       std::vector<float>* records, int threads = 1) {
  TestCall<typename Device::Call> call(threads);
  BadIndex bad;
  CHECK_TRUE(Device(call.get())
                 .template Update<T>(p.rule, records->data(), p.rows, words, p.dim, ids.data(),
                                     static_cast<int64_t>(ids.size()), p.values.data(), p.hyper.data(),
                                     &bad) == 0);
  return bad;
}

// What RowUpdate leaves, to the bit, in the row and slots of each record, and every other word as it was.
template <typename Device, typename T, typename G, typename Id>
void CheckRecords(UpdateRule rule, int64_t rows, int64_t dim, int64_t n, bool increasing, int64_t more) {
  const UpdateProblem<T, G, Id> p(rule, rows, dim, n, increasing, 0.01f);
  const int64_t words = RecordLayout{dim, sizeof(T)}.Words(rule) + more;
  const std::vector<float> start = Packed(rule, p.start, rows, dim, words),
                           want = Packed(rule, RunUpdate<RowUpdateCpu>(p), rows, dim, words);
  ForEachLevel<Device>([&] {
    for (int threads : {1, 3}) {
      std::vector<float> records = start;
      CHECK_TRUE((UpdateRecords<Device>(p, words, p.ids, &records, threads).position == -1));
      CHECK_TRUE(SameBits(records, want));
    }
  });
}

template <typename Device>
void AnUpdateHasTheBitsOfRowUpdate() {
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    for (int64_t dim : {1, 3, 16, 17, 64, 123}) {
      for (bool increasing : {false, true}) {
        CheckRecords<Device, float, float, int64_t>(rule, 123, dim, 252, increasing, 0);
        CheckRecords<Device, float, bfloat16, int32_t>(rule, 507, dim, 123, increasing, 5);
        CheckRecords<Device, bfloat16, float, int32_t>(rule, 57, dim, 123, increasing, 1);
        CheckRecords<Device, bfloat16, bfloat16, int64_t>(rule, 57, dim, 123, increasing, 0);
      }
    }
    CheckRecords<Device, float, float, int64_t>(rule, 1, 64, 1, true, 0);
    CheckRecords<Device, bfloat16, float, int64_t>(rule, 1, 3, 20, false, 2);
  }
}

template <typename Device>
void ABadIndexChangesNoRecord() {
  const std::vector<std::pair<std::vector<int32_t>, int64_t>> cases = {
      {{0, 1, 4}, 2}, {{2, -1, 3}, 1}, {{-1}, 0}, {{4}, 0}, {{3, 4, 0}, 1}};
  for (const auto& [ids, position] : cases) {
    const UpdateProblem<float, float, int32_t> p(UpdateRule::kLazyAdam, 4, 3, 9, false, 0.f);
    const int64_t words = RecordLayout{3, 4}.Words(p.rule);
    const std::vector<float> start = Packed(p.rule, p.start, 4, 3, words);
    std::vector<float> records = start;
    const BadIndex bad = UpdateRecords<Device>(p, words, ids, &records);
    CHECK_TRUE(bad.position == position && bad.index == ids[position]);
    CHECK_TRUE(SameBits(records, start));
  }
}

template <typename Device>
void NoRecords() {
  const UpdateProblem<float, float, int64_t> p(UpdateRule::kSgd, 0, 3, 0, true, 0.f);
  const std::vector<int64_t> none, first = {0};
  std::vector<float> records;
  CHECK_TRUE((UpdateRecords<Device>(p, 4, none, &records).position == -1));
  CHECK_TRUE((UpdateRecords<Device>(p, 4, first, &records).position == 0));
}

template <typename Device, typename T, typename Id>
void CheckGather(int64_t rows, int64_t dim, int64_t n, int64_t more) {
  const RecordLayout layout = {dim, sizeof(T)};
  const int64_t words = layout.Words() + more;
  Random random(static_cast<uint64_t>(rows + dim));
  std::vector<uint32_t> records(rows * words);  // any bits: those of a NaN are copied too
  for (uint32_t& word : records) word = static_cast<uint32_t>(random.Next());
  const uint32_t marks[] = {0, 0x3f800000u, 0x80000000u, 0x7fc00000u, 1};
  for (int64_t row = 0; row < rows; ++row) records[row * words] = marks[random.Below(5)];
  std::vector<Id> ids(n);
  for (Id& id : ids) id = static_cast<Id>(random.Below(rows));
  for (int threads : {1, 3}) {
    std::vector<char> out = Unwritten<char>(n * layout.RowBytes() + 1), written = Unwritten<char>(n + 1);
    TestCall<typename Device::Call> call(threads);
    BadIndex bad;
    CHECK_TRUE(Device(call.get())
                   .Gather(layout, reinterpret_cast<const float*>(records.data()), rows, words, ids.data(), n,
                           out.data(), reinterpret_cast<bool*>(written.data()), &bad) == 0);
    CHECK_TRUE(bad.position == -1 && out.back() == -1 && written.back() == -1);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t* record = records.data() + ids[i] * words;
      CHECK_TRUE(written[i] == (record[0] != 0));
      CHECK_TRUE(dim == 0 ||
                 std::memcmp(out.data() + i * layout.RowBytes(), record + 1, layout.RowBytes()) == 0);
    }
  }
}

template <typename Device>
void ALookupCopiesBytes() {
  for (int64_t dim : {0, 1, 2, 3, 16, 64, 65, 1500}) {
    for (int64_t more : {0, 1, 130}) {
      CheckGather<Device, float, int64_t>(57, dim, 300, more);
      CheckGather<Device, float, int32_t>(1, dim, 3, more);
      CheckGather<Device, bfloat16, int32_t>(57, dim, 300, more);
      CheckGather<Device, bfloat16, int64_t>(1, dim, 0, more);
    }
  }
}

template <typename Device>
void ALookupNamesABadIndex() {
  const std::vector<float> records(8, 1.f);
  for (const auto& [ids, position] : std::vector<std::pair<std::vector<int64_t>, int64_t>>{
           {{0, 4}, 1}, {{-1, 0}, 0}, {{1, int64_t{1} << 62}, 1}, {{INT64_MIN, 9}, 0}}) {
    float out[2] = {5.f, 5.f};
    bool written[2] = {};
    TestCall<typename Device::Call> call;
    BadIndex bad;
    CHECK_TRUE(Device(call.get()).Gather({1, 4}, records.data(), 4, 2, ids.data(), 2, out, written, &bad) ==
               0);
    CHECK_TRUE(bad.position == position && bad.index == ids[position]);
    CHECK_TRUE(out[0] == 5.f && out[1] == 5.f && !written[0] && !written[1]);
  }
}

}  // namespace largeout

#define LARGEOUT_RECORDS_CASES(Device)                 \
  LARGEOUT_CASE(AnUpdateHasTheBitsOfRowUpdate, Device) \
  LARGEOUT_CASE(ABadIndexChangesNoRecord, Device)      \
  LARGEOUT_CASE(NoRecords, Device)                     \
  LARGEOUT_CASE(ALookupCopiesBytes, Device)            \
  LARGEOUT_CASE(ALookupNamesABadIndex, Device)

#endif  // LARGEOUT_ROW_UPDATE_RECORDS_CASES_H_
