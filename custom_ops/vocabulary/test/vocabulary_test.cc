#include "vocabulary/vocabulary.h"

#include "vocabulary/test/vocabulary_cases.h"
#include "vocabulary/vocabulary_hash.h"

namespace largeout {

LARGEOUT_VOCABULARY_CASES(VocabularyCpu)

LARGEOUT_TEST(MixesAsPublished) {
  CHECK_TRUE(MixBits(0) == 0xe220a8397b1dcdafull);  // the first number of SplitMix64 with the seed 0
  CHECK_TRUE(MixBits(~uint64_t{0}) == VocabularyReference::Mix(~uint64_t{0}));
}

// The largest numbers of buckets: no product overflows.
LARGEOUT_TEST(HalvesOfAHashReachEveryBucket) {
  for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{250000}, kMostBuckets}) {
    CHECK_TRUE(FromHigh(0, n) == 0 && FromLow(0, n) == 0);
    CHECK_TRUE(FromHigh(~uint64_t{0}, n) == n - 1 && FromLow(~uint64_t{0}, n) == n - 1);
  }
}

}  // namespace largeout
