// Private to vocabulary: where an id may be. All functions are static: x_simd.cc is compiled once per level,
// and no level may get another one's code.
#ifndef LARGEOUT_VOCABULARY_VOCABULARY_HASH_H_
#define LARGEOUT_VOCABULARY_VOCABULARY_HASH_H_

#include <cstdint>

namespace largeout {

static inline uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// A number below `n` (at most 2^32) from the half of a hash.
static inline int64_t FromHigh(uint64_t h, int64_t n) {
  return static_cast<int64_t>(((h >> 32) * static_cast<uint64_t>(n)) >> 32);
}
static inline int64_t FromLow(uint64_t h, int64_t n) {
  return static_cast<int64_t>(((h & 0xffffffffu) * static_cast<uint64_t>(n)) >> 32);
}

}  // namespace largeout

#endif  // LARGEOUT_VOCABULARY_VOCABULARY_HASH_H_
