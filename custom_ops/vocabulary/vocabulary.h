// Vocabulary: which row of a fixed table an id has, where ids are any 64-bit numbers and more than the table
// has rows. An id gets a row once it has been seen often enough, and loses it to another one when room is short.
//
// It is for CPUs alone: ids come from the host, and strings never reach a GPU. So there is no CUDA code, and the
// ops are registered for DEVICE_CPU only.
//
// State, all of it in arrays of the caller (capacity is a positive multiple of 16, blocks may be 0):
//   keys   int64 [capacity]    the id in each slot; kEmptyKey where the slot is free. A slot is a row of the table.
//   scores int64 [capacity]    the lowest score goes first. That of a free slot means nothing.
//   sketch uint8 [blocks, 64]  counters of ids that have no slot yet; a block is one cache line
//   clock  int64 [2]           steps taken; additions to the sketch since it was last halved
//
// Where an id may be. mix is the finalizer of SplitMix64 (Steele et al. 2014); h = mix(id), h2 = mix(h), and
// there are buckets = capacity / 16 buckets of 16 slots:
//   bucket a = ((h >> 32) * buckets) >> 32
//   bucket b = ((h & 0xffffffff) * buckets) >> 32; it may be bucket a
//   block    = ((h2 >> 32) * blocks) >> 32
//   counters of the block: the four 6-bit fields of the low 24 bits of h2; some may be the same
// The slot of an id is the first one that holds it, bucket a before bucket b. kEmptyKey itself, as an id, has no
// slot, is not counted, and never gets one.
//
// An update does a step, with no ids at all too:
//   step = ++clock[0]
//   1. Finds the slots of all ids.
//   2. Scores of those found. LRU: step. LFU: (count << 32) | (step & 0xffffffff), where count grows by one for
//      each occurrence of the id, and stays at 2^31 - 1. (A slot was "touched in this step" if its score says
//      so: LRU all of it, LFU the low 32 bits.)
//   3. Each missing id once, in the order of their first occurrences; c is how often it occurs:
//      a. If admit_after > 1: new = min(255, least of its four counters + c), each counter = max(itself, new),
//         clock[1] += c. If new < admit_after, the id stays out.
//      b. It gets the lowest free slot of the bucket that has more of them (bucket a if equal). If neither has
//         one: of the slots of both that were not touched in this step, that of the lowest score (bucket a
//         before b, then the lowest slot). If there is none, the id stays out.
//      c. Its key is written, and its score: step, or (count << 32) | (step & 0xffffffff), where count is `new`,
//         or c if admit_after is 1. If the slot held another id, it is appended to `replaced`: its row is
//         initialized again.
//   4. While clock[1] >= 4 * admit_after * blocks > 0: all counters are halved (rounded down), and so is clock[1].
//      (An addition raises four of the 64 counters of a block. So at that limit a counter was raised admit_after / 4
//      times on average, and an id that is new finds four counters of at least 1 in 2.4% of cases; an id that comes
//      admit_after times within 2 * admit_after * blocks additions is admitted.)
// An id that is found or placed in a step keeps its slot in this step, so no slot is replaced twice. Clocks wrap
// around as unsigned numbers do.
//
// Speed is bound by waiting for cache lines. An id that is found: 2 lines of keys, or 4 if it is in bucket b, one
// of scores, and 16 bytes of its own: 272 bytes on average. One that is missing reads all 4 lines of keys and one
// of the sketch: 336 bytes; one that replaces another the 4 lines of scores too: 592. No flops to speak of. Steps
// 1 and 2 run on all threads, 3 on one. The same bits for every number of threads and instruction-set level.
#ifndef LARGEOUT_VOCABULARY_VOCABULARY_H_
#define LARGEOUT_VOCABULARY_VOCABULARY_H_

#include <cstdint>

#include "common/scratch.h"

namespace largeout {

constexpr int64_t kEmptyKey = INT64_MIN;
constexpr int64_t kSlotsPerBucket = 16;
constexpr int64_t kCountersPerBlock = 64;
constexpr int64_t kMostAdmitAfter = 255;            // what a counter holds
constexpr int64_t kMostBuckets = int64_t{1} << 32;  // and blocks: half of a hash chooses one

enum class Evict { kLfu, kLru };

// Owns nothing.
struct VocabularyView {
  int64_t* keys;
  int64_t* scores;
  int64_t capacity;
  uint8_t* sketch;
  int64_t blocks;
  int64_t* clock;
};

struct VocabularyRules {
  int64_t admit_after;  // in [1, kMostAdmitAfter]; above 1 there must be blocks
  Evict evict;
};

// Methods return 0 or kNoMemory.
class VocabularyCpu {
 public:
  using Call = CpuCall;
  explicit VocabularyCpu(const CpuCall& call) : call_(call) {}

  // rows[i] = the slot of ids[i], or -1.
  int Find(const int64_t* keys, int64_t capacity, const int64_t* ids, int64_t n, int64_t* rows);

  // One step with the ids (n < 2^31): rows [n] as above, after the step; replaced has room for n slots, and
  // *num_replaced of them are written. Where it returns kNoMemory, nothing was changed.
  int Update(const VocabularyView& vocabulary, const VocabularyRules& rules, const int64_t* ids, int64_t n,
             int64_t* rows, int64_t* replaced, int64_t* num_replaced);

 private:
  const CpuCall call_;
};

}  // namespace largeout

#endif  // LARGEOUT_VOCABULARY_VOCABULARY_H_
