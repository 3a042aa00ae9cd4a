// A vocabulary one id after the other, as vocabulary.h says it, and the arrays of one.
#ifndef LARGEOUT_VOCABULARY_VOCABULARY_REFERENCE_H_
#define LARGEOUT_VOCABULARY_VOCABULARY_REFERENCE_H_

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/test/check.h"
#include "vocabulary/vocabulary.h"

namespace largeout {

struct OwnedVocabulary {
  OwnedVocabulary(int64_t capacity, int64_t blocks)
      : keys(capacity, kEmptyKey), scores(capacity), clock(2), sketch(blocks * kCountersPerBlock) {}
  VocabularyView View() {
    const int64_t blocks = static_cast<int64_t>(sketch.size()) / kCountersPerBlock;
    return {keys.data(),   scores.data(), static_cast<int64_t>(keys.size()),
            sketch.data(), blocks,        clock.data()};
  }
  bool operator==(const OwnedVocabulary& other) const {
    return keys == other.keys && scores == other.scores && clock == other.clock && sketch == other.sketch;
  }

  std::vector<int64_t> keys, scores, clock;
  std::vector<uint8_t> sketch;
};

struct StepResult {
  std::vector<int64_t> rows, replaced;
  bool operator==(const StepResult& other) const { return rows == other.rows && replaced == other.replaced; }
};

class VocabularyReference {
 public:
  VocabularyReference(OwnedVocabulary* v, VocabularyRules rules) : v_(v), rules_(rules) {}

  // Random(x).Next() is the finalizer of x.
  static uint64_t Mix(uint64_t x) { return Random(x).Next(); }

  // Both buckets, as their first slots.
  std::vector<int64_t> BucketsOf(int64_t id) const {
    const uint64_t h = Mix(static_cast<uint64_t>(id)), buckets = v_->keys.size() / 16;
    return {static_cast<int64_t>((h >> 32) * buckets >> 32) * 16,
            static_cast<int64_t>((h & 0xffffffffu) * buckets >> 32) * 16};
  }

  int64_t Find(int64_t id) const {
    for (const int64_t first : BucketsOf(id)) {
      for (int64_t slot = first; slot < first + 16; ++slot) {
        if (v_->keys[slot] == id && id != kEmptyKey) return slot;
      }
    }
    return -1;
  }

  StepResult Update(const std::vector<int64_t>& ids) {
    StepResult result;
    step_ = ++v_->clock[0];
    std::vector<int64_t> missing;
    std::unordered_map<int64_t, int64_t> counts;
    std::vector<int64_t> found;
    for (const int64_t id : ids) {
      const int64_t slot = Find(id);
      if (slot >= 0) found.push_back(slot);
      if (slot < 0 && id != kEmptyKey && counts[id]++ == 0) missing.push_back(id);
    }
    for (const int64_t slot : found) v_->scores[slot] = Score((v_->scores[slot] >> 32) + 1);
    for (const int64_t id : missing) Place(id, counts[id], &result);
    const int64_t blocks = static_cast<int64_t>(v_->sketch.size()) / 64;
    while (blocks > 0 && v_->clock[1] >= 4 * rules_.admit_after * blocks) {
      for (uint8_t& counter : v_->sketch) counter /= 2;
      v_->clock[1] /= 2;
    }
    for (const int64_t id : ids) result.rows.push_back(Find(id));
    return result;
  }

 private:
  int64_t Score(int64_t count) const {
    if (rules_.evict == Evict::kLru) return step_;
    return std::min<int64_t>(count, 2147483647) * (int64_t{1} << 32) + step_ % (int64_t{1} << 32);
  }

  bool Touched(int64_t slot) const {
    const int64_t score = v_->scores[slot];
    return rules_.evict == Evict::kLru ? score == step_
                                       : static_cast<uint32_t>(score) == static_cast<uint32_t>(step_);
  }

  int64_t Count(int64_t id, int64_t occurrences) {
    const uint64_t h2 = Mix(Mix(static_cast<uint64_t>(id))), blocks = v_->sketch.size() / 64;
    uint8_t* block = &v_->sketch[((h2 >> 32) * blocks >> 32) * 64];
    uint8_t* counters[] = {block + h2 % 64, block + h2 / 64 % 64, block + h2 / 4096 % 64,
                           block + h2 / 262144 % 64};
    int64_t least = 255;
    for (const uint8_t* counter : counters) least = std::min<int64_t>(least, *counter);
    const int64_t now = std::min<int64_t>(255, least + occurrences);
    for (uint8_t* counter : counters) *counter = static_cast<uint8_t>(std::max<int64_t>(*counter, now));
    v_->clock[1] += occurrences;
    return now;
  }

  void Place(int64_t id, int64_t count, StepResult* result) {
    if (rules_.admit_after > 1) {
      count = Count(id, count);
      if (count < rules_.admit_after) return;
    }
    const std::vector<int64_t> buckets = BucketsOf(id);
    std::vector<int64_t> free[2];
    for (int k = 0; k < 2; ++k) {
      for (int64_t slot = buckets[k]; slot < buckets[k] + 16; ++slot) {
        if (v_->keys[slot] == kEmptyKey) free[k].push_back(slot);
      }
    }
    int64_t place = -1;
    if (!free[0].empty() || !free[1].empty()) {
      place = free[1].size() > free[0].size() ? free[1][0] : free[0][0];
    } else {
      for (const int64_t first : buckets) {
        for (int64_t slot = first; slot < first + 16; ++slot) {
          if (!Touched(slot) && (place < 0 || v_->scores[slot] < v_->scores[place])) place = slot;
        }
      }
      if (place < 0) return;
      result->replaced.push_back(place);
    }
    v_->keys[place] = id, v_->scores[place] = Score(count);
  }

  OwnedVocabulary* v_;
  VocabularyRules rules_;
  int64_t step_ = 0;
};

}  // namespace largeout

#endif  // LARGEOUT_VOCABULARY_VOCABULARY_REFERENCE_H_
