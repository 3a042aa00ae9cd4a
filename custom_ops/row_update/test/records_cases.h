// Tests of records: an update gives the bits of RowUpdate and changes nothing else but marks, a lookup copies
// bytes, and what is not as it was written is noticed.
#ifndef LARGEOUT_ROW_UPDATE_RECORDS_CASES_H_
#define LARGEOUT_ROW_UPDATE_RECORDS_CASES_H_

#include <cstring>
#include <vector>

#include "common/test/levels.h"
#include "common/test/test_call.h"
#include "row_update/records.h"
#include "row_update/row_update.h"
#include "row_update/test/row_update_cases.h"

namespace largeout {

// RecordMark, word by word.
inline uint32_t MarkByHand(const float* record, int64_t words, int64_t row) {
  std::vector<uint32_t> w(static_cast<size_t>(words) + 1);  // behind it: a word of 0, for an odd number
  for (int64_t j = 0; j < words; ++j) std::memcpy(&w[j], record + j, sizeof(float));
  uint64_t sum = static_cast<uint64_t>(row) * 0xc2b2ae3d27d4eb4full;
  for (int64_t j = 1; j < words; j += 2) {
    const uint32_t low = w[j] + static_cast<uint32_t>(j) * 0x9e3779b1u;
    const uint32_t high = w[j + 1] + static_cast<uint32_t>(j + 1) * 0x9e3779b1u;
    sum += static_cast<uint64_t>(low) * high;
  }
  const uint32_t mark = static_cast<uint32_t>(((sum ^ (sum >> 29)) * 0x9e3779b185ebca87ull) >> 32);
  return mark == 0 || mark == kPlainMark ? mark ^ 0x80000000u : mark;
}

inline void SetMark(uint32_t mark, float* record) { std::memcpy(record, &mark, sizeof(mark)); }

// The table and the slots of `state` as records of `words` words. What belongs to neither is NaN. Every third
// row was never written.
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
    SetMark(row % 3 == 2 ? 0 : MarkByHand(record, words, row), record);
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
                                     static_cast<int64_t>(ids.size()), p.values.data(),
                                     NumbersOn<Device>(p.hyper, p.rounding).get(), &bad) == 0);
  return bad;
}

// What RowUpdate leaves, to the bit, in the row and slots of each record, every other word as it was, and the
// marks of what is there now.
template <typename Device, typename T, typename G, typename Id>
void CheckRecords(UpdateRule rule, int64_t rows, int64_t dim, int64_t n, bool increasing, int64_t more) {
  UpdateProblem<T, G, Id> p(rule, rows, dim, n, increasing, 0.01f);
  if (dim % 2 == 1) p.rounding = RoundingOf<T>(static_cast<uint64_t>(dim));
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
  for (int64_t row = 0; row < rows; ++row) {
    float* record = reinterpret_cast<float*>(records.data() + row * words);
    const uint32_t marks[] = {0, kPlainMark, MarkByHand(record, words, row)};
    SetMark(marks[random.Below(3)], record);
  }
  std::vector<Id> ids(n);
  for (Id& id : ids) id = static_cast<Id>(random.Below(rows));
  for (int threads : {1, 3}) {
    std::vector<char> out = Unwritten<char>(n * layout.RowBytes() + 1), written = Unwritten<char>(n + 1);
    TestCall<typename Device::Call> call(threads);
    BadIndex bad;
    int64_t damaged;
    CHECK_TRUE(Device(call.get())
                   .Gather(layout, reinterpret_cast<const float*>(records.data()), rows, words, ids.data(), n,
                           out.data(), reinterpret_cast<bool*>(written.data()), nullptr, &damaged, &bad) == 0);
    CHECK_TRUE(bad.position == -1 && damaged == -1 && out.back() == -1 && written.back() == -1);
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
    int64_t damaged;
    CHECK_TRUE(Device(call.get())
                   .Gather({1, 4}, records.data(), 4, 2, ids.data(), 2, out, written, nullptr, &damaged, &bad) == 0);
    CHECK_TRUE(bad.position == position && bad.index == ids[position]);
    CHECK_TRUE(out[0] == 5.f && out[1] == 5.f && !written[0] && !written[1]);
  }
}

// Records of `words` words with random bits and right marks.
inline std::vector<float> Marked(int64_t rows, int64_t words) {
  Random random(static_cast<uint64_t>(rows + words));
  std::vector<float> records(rows * words);
  for (float& word : records) SetMark(static_cast<uint32_t>(random.Next()), &word);
  for (int64_t row = 0; row < rows; ++row) {
    float* record = records.data() + row * words;
    SetMark(MarkByHand(record, words, row), record);
  }
  return records;
}

template <typename Device, typename Id>
BadIndex WriteAll(const std::vector<Id>& ids, const std::vector<float>& contents, int64_t rows, int64_t words,
                  std::vector<float>* records, int threads = 1) {
  TestCall<typename Device::Call> call(threads);
  BadIndex bad;
  CHECK_TRUE(Device(call.get())
                 .Write(records->data(), rows, words, ids.data(), static_cast<int64_t>(ids.size()),
                        contents.data(), &bad) == 0);
  return bad;
}

template <typename Device>
void WrittenRecordsHaveMarks() {
  for (int64_t words : {1, 2, 3, 17, 65, 193}) {
    const int64_t rows = 400, behind = words - 1;
    const std::vector<float> want = Marked(rows, words);
    std::vector<float> contents;
    std::vector<int32_t> ids(rows);
    for (int64_t row = 0; row < rows; ++row) {
      ids[row] = static_cast<int32_t>(row);
      contents.insert(contents.end(), want.begin() + row * words + 1, want.begin() + (row + 1) * words);
    }
    ForEachLevel<Device>([&] {
      for (int threads : {1, 3}) {
        std::vector<float> records(rows * words);
        CHECK_TRUE((WriteAll<Device>(ids, contents, rows, words, &records, threads).position == -1));
        CHECK_TRUE(SameBits(records, want));
        // Of a row that is named twice the last record stays.
        const std::vector<int32_t> twice = {7, 3, 7};
        const std::vector<float> three(contents.begin(), contents.begin() + 3 * behind);
        WriteAll<Device>(twice, three, rows, words, &records, threads);
        const std::vector<float> last(three.begin() + 2 * behind, three.end());
        CHECK_TRUE(SameBits({records.begin() + 7 * words + 1, records.begin() + 8 * words}, last));
        CHECK_TRUE(RecordMark(records.data() + 7 * words, words, 7) ==
                   MarkByHand(records.data() + 7 * words, words, 7));
        // A bad index: nothing is written.
        const std::vector<float> before = records;
        const BadIndex bad = WriteAll<Device>(std::vector<int32_t>{1, 2, 400}, three, rows, words, &records);
        CHECK_TRUE(bad.position == 2 && bad.index == 400 && SameBits(records, before));
      }
    });
  }
}

// A flipped bit anywhere, the record of another row, half a record: by lookups of rows and of marks.
template <typename Device>
void DamageIsFound() {
  const int64_t rows = 30, words = 20;
  const RecordLayout layout = {8, 4};
  const std::vector<float> good = Marked(rows, words);
  std::vector<int64_t> ids = {4, 29, 11, 3, 11, 0};
  const auto found = [&](const std::vector<float>& records, int threads, uint64_t* checked = nullptr) {
    std::vector<float> out(ids.size() * 8);
    bool written[6];
    TestCall<typename Device::Call> call(threads);
    BadIndex bad;
    int64_t damaged, in_lookup;
    CHECK_TRUE(Device(call.get()).Gather(layout, records.data(), rows, words, ids.data(), 6, out.data(),
                                         written, checked, &damaged, &bad) == 0);
    CHECK_TRUE(AllWritten(records.data(), rows, words, ids.data(), 6, checked, &in_lookup, call.get().parallel));
    CHECK_TRUE(damaged == in_lookup);
    return damaged;
  };
  ForEachLevel<Device>([&] {
    for (int threads : {1, 3}) {
      CHECK_TRUE(found(good, threads) == -1);
      for (int64_t bit = 0; bit < words * 32; ++bit) {
        std::vector<float> records = good;
        reinterpret_cast<char*>(records.data() + 11 * words)[bit / 8] ^= static_cast<char>(1 << bit % 8);
        CHECK_TRUE(found(records, threads) == 2);
      }
      std::vector<float> moved = good;  // whole, and of another row
      std::copy_n(good.begin() + 5 * words, words, moved.begin() + 29 * words);
      CHECK_TRUE(found(moved, threads) == 1);
      std::vector<float> half = good;  // of two writes
      std::copy_n(good.begin() + 5 * words, words / 2, half.begin());
      CHECK_TRUE(found(half, threads) == 5);
      SetMark(kPlainMark, half.data());  // no digest
      CHECK_TRUE(found(half, threads) == -1);
      half[5 * words + 3] += 1.f;  // nobody asks for it
      CHECK_TRUE(found(half, threads) == -1);
      uint64_t checked = 0;
      CHECK_TRUE(found(moved, threads, &checked) == 1);
      CHECK_TRUE(checked == (1u << 4 | 1u << 11 | 1u << 3 | 1u << 0));  // those that are whole
      CHECK_TRUE(found(good, threads, &checked) == -1 && (checked >> 29 & 1) == 1);
      CHECK_TRUE(found(moved, threads, &checked) == -1);  // once
    }
  });
}

}  // namespace largeout

#define LARGEOUT_RECORDS_CASES(Device)                 \
  LARGEOUT_CASE(WrittenRecordsHaveMarks, Device)       \
  LARGEOUT_CASE(DamageIsFound, Device)                 \
  LARGEOUT_CASE(AnUpdateHasTheBitsOfRowUpdate, Device) \
  LARGEOUT_CASE(ABadIndexChangesNoRecord, Device)      \
  LARGEOUT_CASE(NoRecords, Device)                     \
  LARGEOUT_CASE(ALookupCopiesBytes, Device)            \
  LARGEOUT_CASE(ALookupNamesABadIndex, Device)

#endif  // LARGEOUT_ROW_UPDATE_RECORDS_CASES_H_
