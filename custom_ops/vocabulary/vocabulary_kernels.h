// Private to vocabulary: what vocabulary.cc hands to the loops of vocabulary_simd.cc.
#ifndef LARGEOUT_VOCABULARY_VOCABULARY_KERNELS_H_
#define LARGEOUT_VOCABULARY_VOCABULARY_KERNELS_H_

#include "common/isa.h"
#include "vocabulary/vocabulary.h"

namespace largeout {

// The missing ids, each once, in the order of their first occurrences.
struct MissingIds {
  const int64_t* ids;
  const uint64_t* hashes;  // MixBits of them
  const int32_t* counts;   // how often each occurs
  int64_t size;
};

struct VocabularyKernels {
  // rows[i] = the slot of ids[i], or -1, for i in [begin, end).
  void (*find)(const int64_t* keys, int64_t buckets, const int64_t* ids, int64_t begin, int64_t end,
               int64_t* rows);
  // The same; the scores of what is found (by Evict); the positions of what is not. Returns how many these
  // are. With `shared` other threads may be at the same scores.
  int64_t (*touch[2])(const VocabularyView& vocabulary, int64_t step, bool shared, const int64_t* ids,
                      int64_t begin, int64_t end, int64_t* rows, int32_t* missing);
  // Counts and places the missing ids (by Evict): slots [missing.size], -1 for those that stay out. Returns
  // how many slots were appended to `replaced`.
  int64_t (*place[2])(const VocabularyView& vocabulary, int64_t step, int64_t admit_after,
                      const MissingIds& missing, int64_t* slots, int64_t* replaced);
};

LARGEOUT_DECLARE_LEVELS(VocabularyKernels, kVocabularyKernels)

}  // namespace largeout

#endif  // LARGEOUT_VOCABULARY_VOCABULARY_KERNELS_H_
