// Tests of VocabularyCpu against one id at a time: the same bits for 1, 2 and 4 threads and for every level.
#ifndef LARGEOUT_VOCABULARY_VOCABULARY_CASES_H_
#define LARGEOUT_VOCABULARY_VOCABULARY_CASES_H_

#include <vector>

#include "common/test/levels.h"
#include "common/test/test_call.h"
#include "vocabulary/test/vocabulary_reference.h"

namespace largeout {

inline constexpr int kThreads[] = {1, 2, 4};

template <typename Device>
StepResult RunUpdate(OwnedVocabulary* v, VocabularyRules rules, const std::vector<int64_t>& ids,
                     int threads) {
  const int64_t n = static_cast<int64_t>(ids.size());
  TestCall<typename Device::Call> call(threads);
  StepResult result = {Unwritten<int64_t>(n), Unwritten<int64_t>(n)};
  int64_t num_replaced = -1;
  Device device(call.get());
  CHECK_TRUE(device.Update(v->View(), rules, ids.data(), n, result.rows.data(), result.replaced.data(),
                           &num_replaced) == 0);
  CHECK_TRUE(num_replaced >= 0 && num_replaced <= n);
  result.replaced.resize(num_replaced);
  return result;
}

template <typename Device>
std::vector<int64_t> RunFind(OwnedVocabulary* v, const std::vector<int64_t>& ids, int threads) {
  std::vector<int64_t> rows = Unwritten<int64_t>(static_cast<int64_t>(ids.size()));
  TestCall<typename Device::Call> call(threads);
  CHECK_TRUE(Device(call.get())
                 .Find(v->keys.data(), static_cast<int64_t>(v->keys.size()), ids.data(),
                       static_cast<int64_t>(ids.size()), rows.data()) == 0);
  return rows;
}

// One step from the same state at every level and with every number of threads; *v is the state after it.
template <typename Device>
StepResult CheckStep(OwnedVocabulary* v, VocabularyRules rules, const std::vector<int64_t>& ids) {
  const OwnedVocabulary before = *v;
  const StepResult want = VocabularyReference(v, rules).Update(ids);
  ForEachLevel<Device>([&] {
    for (const int threads : kThreads) {
      OwnedVocabulary got = before;
      CHECK_TRUE(RunUpdate<Device>(&got, rules, ids, threads) == want);
      CHECK_TRUE(got == *v);
      CHECK_TRUE(RunFind<Device>(&got, ids, threads) == want.rows);
    }
  });
  return want;
}

inline std::vector<VocabularyRules> SomeRules() {
  std::vector<VocabularyRules> rules;
  for (const Evict evict : {Evict::kLfu, Evict::kLru}) {
    for (const int64_t admit_after : {1, 2, 5, 255}) rules.push_back({admit_after, evict});
  }
  return rules;
}

// Ids that are often the same, and some of all 64 bits.
inline std::vector<int64_t> SkewedIds(int64_t n, int64_t distinct, Random* random) {
  std::vector<int64_t> ids(n);
  for (int64_t& id : ids) {
    id = random->Below(1 + random->Below(distinct));
    if (random->Below(4) == 0) id = static_cast<int64_t>(VocabularyReference::Mix(static_cast<uint64_t>(id)));
    if (random->Below(500) == 0) id = kEmptyKey;
  }
  return ids;
}

template <typename Device>
void Sizes() {
  Random random(1);
  for (const VocabularyRules& rules : SomeRules()) {
    for (const int64_t capacity : {16, 48, 1024}) {
      OwnedVocabulary v(capacity, rules.admit_after > 1 ? 3 : 0);
      for (const int64_t n : {0, 1, 2, 15, 16, 17, 31, 33, 500, 1023, 1024, 1025, 5000}) {
        CheckStep<Device>(&v, rules, SkewedIds(n, capacity, &random));
      }
    }
  }
}

// 200 steps: tables fill up, ids come and go, the sketch is halved.
template <typename Device>
void ManySteps() {
  Random random(2);
  for (const VocabularyRules& rules : SomeRules()) {
    OwnedVocabulary v(512, 2);
    int64_t replaced = 0, halved = 0, out = 0;
    for (int step = 0; step < 200; ++step) {
      const int64_t additions = v.clock[1];
      const StepResult result = CheckStep<Device>(&v, rules, SkewedIds(random.Below(600), 4000, &random));
      replaced += static_cast<int64_t>(result.replaced.size());
      halved += v.clock[1] < additions;
      for (const int64_t row : result.rows) out += row < 0;
    }
    CHECK_TRUE(v.clock[0] == 200 && out > 0);
    CHECK_TRUE((replaced > 0) == (rules.admit_after < 255));
    CHECK_TRUE((halved > 0) == (rules.admit_after > 1));
  }
}

// More ids than the table has slots: in one step they fill it, and the others stay out, since all have been
// touched.
template <typename Device>
void AllTouchedInAStep() {
  for (const Evict evict : {Evict::kLfu, Evict::kLru}) {
    OwnedVocabulary v(64, 0);
    std::vector<int64_t> ids(3000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
    const StepResult first = CheckStep<Device>(&v, {1, evict}, ids);
    CHECK_TRUE(first.replaced.empty());
    int64_t in = 0;
    for (const int64_t row : first.rows) in += row >= 0;
    CHECK_TRUE(in == 64);
    // The next step may replace all of them, each once.
    for (int64_t& id : ids) id += 3000;
    StepResult second = CheckStep<Device>(&v, {1, evict}, ids);
    std::sort(second.replaced.begin(), second.replaced.end());
    CHECK_TRUE(second.replaced.size() == 64);
    for (int64_t slot = 0; slot < 64; ++slot) CHECK_TRUE(second.replaced[slot] == slot);
  }
}

// One bucket: the id that was seen least goes; of equals the oldest; what a step has touched stays.
template <typename Device>
void ChoosesTheVictim() {
  OwnedVocabulary v(16, 0);
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < 16; ++id) ids.insert(ids.end(), id == 5 ? 1 : 3, id);
  CheckStep<Device>(&v, {1, Evict::kLfu}, ids);
  CHECK_TRUE(CheckStep<Device>(&v, {1, Evict::kLfu}, {100}).replaced == std::vector<int64_t>{5});
  CHECK_TRUE(CheckStep<Device>(&v, {1, Evict::kLfu}, {100, 101}).replaced == std::vector<int64_t>{0});
  CHECK_TRUE(
      (CheckStep<Device>(&v, {1, Evict::kLfu}, {101, 101, 1, 102}).replaced == std::vector<int64_t>{5}));

  OwnedVocabulary w(16, 0);
  for (int64_t id = 0; id < 16; ++id) CheckStep<Device>(&w, {1, Evict::kLru}, {id, id, id});
  CheckStep<Device>(&w, {1, Evict::kLru}, {0});
  CHECK_TRUE(CheckStep<Device>(&w, {1, Evict::kLru}, {100}).replaced == std::vector<int64_t>{1});
}

template <typename Device>
void AdmitsByCount() {
  OwnedVocabulary v(64, 4);
  const VocabularyRules rules = {3, Evict::kLfu};
  CHECK_TRUE(CheckStep<Device>(&v, rules, {7}).rows[0] == -1);
  CHECK_TRUE(CheckStep<Device>(&v, rules, {7, 8}).rows[0] == -1);
  const int64_t row = CheckStep<Device>(&v, rules, {7}).rows[0];
  CHECK_TRUE(row >= 0 && v.scores[row] == (int64_t{3} << 32 | 3));
  CHECK_TRUE(v.clock[0] == 3 && v.clock[1] == 4);
  // As often in one step as in several.
  CHECK_TRUE((CheckStep<Device>(&v, rules, {9, 9, 9}).rows[0] >= 0));
  // Where one time is enough nothing is counted.
  CHECK_TRUE((CheckStep<Device>(&v, {1, Evict::kLfu}, {11}).rows[0] >= 0) && v.clock[1] == 7);
}

template <typename Device>
void TheEmptyKeyIsNoId() {
  for (const VocabularyRules& rules : SomeRules()) {
    OwnedVocabulary v(32, 1);
    const StepResult result = CheckStep<Device>(&v, rules, std::vector<int64_t>(3000, kEmptyKey));
    CHECK_TRUE(result.rows == std::vector<int64_t>(3000, -1) && result.replaced.empty());
    CHECK_TRUE(v.keys == std::vector<int64_t>(32, kEmptyKey) && v.clock[0] == 1 && v.clock[1] == 0);
    CHECK_TRUE(v.sketch == std::vector<uint8_t>(64));
    CheckStep<Device>(&v, rules, {INT64_MAX, kEmptyKey, 0, -1, kEmptyKey + 1, INT64_MAX});
  }
}

// Counts end at 2^31 - 1, counters at 255, and steps beyond 2^32 keep their low half in scores.
template <typename Device>
void Limits() {
  OwnedVocabulary v(16, 1);
  v.clock[0] = (int64_t{1} << 32) + 5;
  CheckStep<Device>(&v, {1, Evict::kLfu}, {1, 2});
  for (int64_t& score : v.scores) score = int64_t{2147483640} << 32;
  CheckStep<Device>(&v, {1, Evict::kLfu}, std::vector<int64_t>(2000, 1));
  CHECK_TRUE(v.scores[0] == (int64_t{2147483647} << 32 | 7));
  CheckStep<Device>(&v, {255, Evict::kLfu}, std::vector<int64_t>(254, 77));
  CHECK_TRUE(CheckStep<Device>(&v, {255, Evict::kLfu}, std::vector<int64_t>(500, 77)).rows[0] >= 0);
  CHECK_TRUE(*std::max_element(v.sketch.begin(), v.sketch.end()) <= 255);
  // Halved several times at once: to nothing.
  for (const int64_t additions :
       {int64_t{7}, int64_t{8}, int64_t{3000}, int64_t{1} << 40, INT64_MAX - 1}) {
    OwnedVocabulary w(16, 1);
    std::fill(w.sketch.begin(), w.sketch.end(), uint8_t{255});
    w.clock[1] = additions;
    CheckStep<Device>(&w, {2, Evict::kLru}, {});
    CHECK_TRUE(w.clock[1] < 8 && (w.sketch[0] == 255) == (additions < 8));
  }
}

// A table that holds an id twice, or in no bucket of it, as only a damaged one does: the first slot counts.
template <typename Device>
void FirstSlotOfAnId() {
  OwnedVocabulary v(16 * 50, 0);
  std::fill(v.keys.begin(), v.keys.end(), 42);
  const std::vector<int64_t> buckets = VocabularyReference(&v, {}).BucketsOf(42);
  CHECK_TRUE(CheckStep<Device>(&v, {1, Evict::kLru}, {42, 43}).rows[0] == buckets[0]);
}

}  // namespace largeout

#define LARGEOUT_VOCABULARY_CASES(Device)  \
  LARGEOUT_CASE(Sizes, Device)             \
  LARGEOUT_CASE(ManySteps, Device)         \
  LARGEOUT_CASE(AllTouchedInAStep, Device) \
  LARGEOUT_CASE(ChoosesTheVictim, Device)  \
  LARGEOUT_CASE(AdmitsByCount, Device)     \
  LARGEOUT_CASE(TheEmptyKeyIsNoId, Device) \
  LARGEOUT_CASE(Limits, Device)            \
  LARGEOUT_CASE(FirstSlotOfAnId, Device)

#endif  // LARGEOUT_VOCABULARY_VOCABULARY_CASES_H_
