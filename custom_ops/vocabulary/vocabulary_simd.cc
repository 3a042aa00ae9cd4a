// The loops of a vocabulary. Each id leads to cache lines far apart in memory, and the time goes into waiting
// for them: so those of ids further on are always on their way.
#include "common/simd.h"
#include "vocabulary/vocabulary_hash.h"
#include "vocabulary/vocabulary_kernels.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

constexpr int64_t kAhead = 16;  // ids; a power of two

// A bucket is kSlotsPerBucket / kWide vectors.
constexpr int kWide = kLanes / 2;
typedef int64_t VL __attribute__((vector_size(kWide * 8)));

LARGEOUT_INLINE VL LoadSlots(const int64_t* slots) {
  VL v;
  std::memcpy(&v, slots, sizeof(v));
  return v;
}

// Bit i: lane i of a comparison is true.
LARGEOUT_INLINE uint32_t TrueLanes(VL comparison) {
#if defined(__AVX512F__)
  return _mm512_movepi64_mask((__m512i)comparison);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_pd((__m256d)comparison));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_pd((__m128d)comparison));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kWide; ++i) bits |= static_cast<uint32_t>(comparison[i] & 1) << i;
  return bits;
#endif
}

// Bit i: bucket[i] == key.
LARGEOUT_INLINE uint32_t EqualSlots(const int64_t* bucket, int64_t key) {
  uint32_t equal = 0;
  for (int i = 0; i < kSlotsPerBucket; i += kWide) {
#if defined(__AVX512F__)
    // GCC 12 would make a vector of the mask, and a mask of the vector.
    equal |= uint32_t{_mm512_cmpeq_epi64_mask((__m512i)LoadSlots(bucket + i), _mm512_set1_epi64(key))} << i;
#else
    equal |= TrueLanes(LoadSlots(bucket + i) == key) << i;
#endif
  }
  return equal;
}

LARGEOUT_INLINE void PrefetchBucket(const int64_t* slots, int64_t bucket) {
  PrefetchRow(slots + bucket * kSlotsPerBucket, kSlotsPerBucket * sizeof(int64_t));
}

struct Places {
  int64_t a, b;  // buckets
};

LARGEOUT_INLINE Places PlacesOf(uint64_t h, int64_t buckets) {
  return {FromHigh(h, buckets), FromLow(h, buckets)};
}

// The slot `i` of both buckets, bucket a first.
LARGEOUT_INLINE int64_t SlotOf(Places at, int64_t i) {
  return i < kSlotsPerBucket ? at.a * kSlotsPerBucket + i : (at.b - 1) * kSlotsPerBucket + i;
}

// Calls body(i, slot) for every id of [begin, end). Bucket b is fetched for those ids alone that are not in
// bucket a; which ones these are is as good as random, so nothing branches on it.
template <typename Body>
LARGEOUT_INLINE void ForEachSlot(const int64_t* keys, int64_t buckets, const int64_t* ids, int64_t begin,
                                 int64_t end, const Body& body) {
  Places coming[2 * kAhead];
  const auto fetch_a = [&](int64_t i) __attribute__((always_inline)) {
    const Places at = PlacesOf(MixBits(static_cast<uint64_t>(ids[i])), buckets);
    PrefetchBucket(keys, at.a);
    coming[i % (2 * kAhead)] = at;
  };
  const auto fetch_b = [&](int64_t i) __attribute__((always_inline)) {
    Places* at = &coming[i % (2 * kAhead)];
    at->a = EqualSlots(keys + at->a * kSlotsPerBucket, ids[i]) != 0 ? at->a : at->b;
    PrefetchBucket(keys, at->a);
  };
  for (int64_t i = begin; i < end && i < begin + 2 * kAhead; ++i) fetch_a(i);
  for (int64_t i = begin; i < end && i < begin + kAhead; ++i) fetch_b(i);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t bucket = coming[i % (2 * kAhead)].a;
    if (i + 2 * kAhead < end) fetch_a(i + 2 * kAhead);
    if (i + kAhead < end) fetch_b(i + kAhead);
    const uint32_t equal = EqualSlots(keys + bucket * kSlotsPerBucket, ids[i]);
    const int64_t slot = bucket * kSlotsPerBucket + __builtin_ctz(equal | 1u << kSlotsPerBucket);
    body(i, equal == 0 || ids[i] == kEmptyKey ? -1 : slot);
  }
}

void Find(const int64_t* keys, int64_t buckets, const int64_t* ids, int64_t begin, int64_t end,
          int64_t* rows) {
  ForEachSlot(keys, buckets, ids, begin, end,
              [&](int64_t i, int64_t slot) __attribute__((always_inline)) { rows[i] = slot; });
}

// Makes scores, and tells from a score whether its slot was touched in this step.
template <Evict kEvict>
struct Score;

template <>
struct Score<Evict::kLru> {
  static inline __attribute__((always_inline)) int64_t Of(int64_t, int64_t step) { return step; }
  static inline __attribute__((always_inline)) VL Touched(VL scores, int64_t step) { return scores == step; }
  static inline __attribute__((always_inline)) void Add(int64_t* score, int64_t, int64_t step, bool) {
    // Threads that find the same id share its line, as long as none of them writes.
    if (__atomic_load_n(score, __ATOMIC_RELAXED) != step) __atomic_store_n(score, step, __ATOMIC_RELAXED);
  }
};

template <>
struct Score<Evict::kLfu> {
  static inline __attribute__((always_inline)) int64_t Of(int64_t count, int64_t step) {
    return static_cast<int64_t>(static_cast<uint64_t>(count < INT32_MAX ? count : INT32_MAX) << 32 |
                                (static_cast<uint64_t>(step) & 0xffffffffu));
  }
  static inline __attribute__((always_inline)) VL Touched(VL scores, int64_t step) {
    return (scores & 0xffffffff) == (step & 0xffffffff);
  }
  // Sums that stop at a limit come out the same in any order.
  static inline __attribute__((always_inline)) void Add(int64_t* score, int64_t count, int64_t step,
                                                        bool shared) {
    int64_t seen = __atomic_load_n(score, __ATOMIC_RELAXED);
    if (!shared) {
      *score = Of((seen >> 32) + count, step);
      return;
    }
    while (!__atomic_compare_exchange_n(score, &seen, Of((seen >> 32) + count, step), true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
  }
};

template <Evict kEvict>
int64_t Touch(const VocabularyView& v, int64_t step, bool shared, const int64_t* ids, int64_t begin,
              int64_t end, int64_t* rows, int32_t* missing) {
  int64_t num_missing = 0;
  const auto add = [&](int64_t i) __attribute__((always_inline)) {
    if (rows[i] >= 0) Score<kEvict>::Add(v.scores + rows[i], 1, step, shared);
  };
  ForEachSlot(v.keys, v.capacity / kSlotsPerBucket, ids, begin, end,
              [&](int64_t i, int64_t slot) __attribute__((always_inline)) {
                rows[i] = slot;
                missing[num_missing] = static_cast<int32_t>(i);
                num_missing += slot < 0;
                if (slot >= 0) PrefetchToWrite(v.scores + slot);
                if (i >= begin + kAhead) add(i - kAhead);
              });
  for (int64_t i = end - begin > kAhead ? end - kAhead : begin; i < end; ++i) add(i);
  return num_missing;
}

// The sketch.

LARGEOUT_INLINE uint8_t* BlockOf(const VocabularyView& v, uint64_t h2) {
  return v.sketch + FromHigh(h2, v.blocks) * kCountersPerBlock;
}

LARGEOUT_INLINE int64_t LeastCounter(const uint8_t* block, uint64_t h2) {
  int64_t least = kMostAdmitAfter;
  for (int k = 0; k < 4; ++k) {
    const int64_t counter = block[h2 >> (6 * k) & 63];
    least = counter < least ? counter : least;
  }
  return least;
}

// Returns the new count.
LARGEOUT_INLINE int64_t CountIn(uint8_t* block, uint64_t h2, int64_t occurrences) {
  int64_t count = LeastCounter(block, h2) + occurrences;
  count = count < kMostAdmitAfter ? count : kMostAdmitAfter;
  for (int k = 0; k < 4; ++k) {
    uint8_t* counter = &block[h2 >> (6 * k) & 63];
    if (*counter < count) *counter = static_cast<uint8_t>(count);
  }
  return count;
}

// The slot of the lowest score in both buckets that was not touched in this step, or -1.
template <Evict kEvict>
LARGEOUT_INLINE int64_t Victim(const int64_t* scores, Places at, int64_t step) {
  constexpr int kVectors = kSlotsPerBucket / kWide;
  const int64_t* buckets[] = {scores + at.a * kSlotsPerBucket, scores + at.b * kSlotsPerBucket};
  VL lanes = VL{} + INT64_MAX;
  uint64_t untouched = 0;  // bit i: slot i of bucket a, then of b
  for (int k = 0; k < 2 * kVectors; ++k) {
    const VL found = LoadSlots(buckets[k / kVectors] + k % kVectors * kWide);
    const VL touched = Score<kEvict>::Touched(found, step);
    untouched |= uint64_t{TrueLanes(~touched)} << (k * kWide);
    const VL open = touched ? VL{} + INT64_MAX : found;
    lanes = open < lanes ? open : lanes;
  }
  int64_t lowest = lanes[0];
  for (int i = 1; i < kWide; ++i) lowest = lanes[i] < lowest ? lanes[i] : lowest;
  const uint64_t equal = EqualSlots(buckets[0], lowest) | EqualSlots(buckets[1], lowest) << kSlotsPerBucket;
  if ((equal & untouched) == 0) return -1;
  return SlotOf(at, __builtin_ctzll(equal & untouched));
}

template <Evict kEvict>
int64_t Place(const VocabularyView& v, int64_t step, int64_t admit_after, const MissingIds& missing,
              int64_t* slots, int64_t* replaced) {
  const int64_t buckets = v.capacity / kSlotsPerBucket;
  int64_t num_replaced = 0;
  // Two waits one after the other: for the counters, which say who may come in, and for the buckets of those.
  const auto fetch_counters = [&](int64_t i) __attribute__((always_inline)) {
    if (admit_after > 1) PrefetchToWrite(BlockOf(v, MixBits(missing.hashes[i])));
  };
  const auto fetch_buckets = [&](int64_t i) __attribute__((always_inline)) {
    if (admit_after > 1) {
      const uint64_t h2 = MixBits(missing.hashes[i]);
      if (LeastCounter(BlockOf(v, h2), h2) + missing.counts[i] < admit_after) return;
    }
    const Places at = PlacesOf(missing.hashes[i], buckets);
    PrefetchBucket(v.keys, at.a);
    PrefetchBucket(v.keys, at.b);
    PrefetchBucket(v.scores, at.a);
    PrefetchBucket(v.scores, at.b);
  };
  for (int64_t i = 0; i < missing.size && i < 2 * kAhead; ++i) fetch_counters(i);
  for (int64_t i = 0; i < missing.size && i < kAhead; ++i) fetch_buckets(i);
  for (int64_t i = 0; i < missing.size; ++i) {
    if (i + 2 * kAhead < missing.size) fetch_counters(i + 2 * kAhead);
    if (i + kAhead < missing.size) fetch_buckets(i + kAhead);
    slots[i] = -1;
    int64_t count = missing.counts[i];
    if (admit_after > 1) {
      const uint64_t h2 = MixBits(missing.hashes[i]);
      count = CountIn(BlockOf(v, h2), h2, count);
      if (count < admit_after) continue;
    }
    const Places at = PlacesOf(missing.hashes[i], buckets);
    const uint32_t free_a = EqualSlots(v.keys + at.a * kSlotsPerBucket, kEmptyKey),
                   free_b = EqualSlots(v.keys + at.b * kSlotsPerBucket, kEmptyKey);
    int64_t slot;
    if ((free_a | free_b) != 0) {
      const bool in_b = __builtin_popcount(free_b) > __builtin_popcount(free_a);
      slot = (in_b ? at.b : at.a) * kSlotsPerBucket + __builtin_ctz(in_b ? free_b : free_a);
    } else {
      slot = Victim<kEvict>(v.scores, at, step);
      if (slot < 0) continue;
      replaced[num_replaced++] = slot;
    }
    v.keys[slot] = missing.ids[i];
    v.scores[slot] = Score<kEvict>::Of(count, step);
    slots[i] = slot;
  }
  return num_replaced;
}

}  // namespace

extern const VocabularyKernels kVocabularyKernels = {
    Find, {Touch<Evict::kLfu>, Touch<Evict::kLru>}, {Place<Evict::kLfu>, Place<Evict::kLru>}};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
