// GroupIds (common/sort.h) on a GPU: a stable radix sort of (key, position) over the bits that keys
// have, then the groups of equal keys. The same bits on every run.
//
//   Arena arena(workspace);                              // a null workspace only adds up: arena.bytes()
//   KeyGroups<uint32_t> groups(n, limit, &arena);
//   KeysOfIdsCuda(ids, n, groups, stream);               // or another kernel that writes keys and positions
//   GroupKeysCuda(groups, stream);
#ifndef LARGEOUT_COMMON_GROUP_CUDA_H_
#define LARGEOUT_COMMON_GROUP_CUDA_H_

#include "common/arena.h"
#include "common/cuda/cuda.h"

namespace largeout {

struct GroupCounts {
  int64_t unique, valid;  // groups; keys that are in one
};

// Device memory for a stable sort of n < 2^31 keys, Key uint32_t (where ShortKeys(limit)) or uint64_t.
template <typename Key>
struct KeySort {
  KeySort(int64_t n, int64_t limit, Arena* arena);

  int64_t n, limit;
  Key* keys;           // [n], the caller's to write; those of `limit` come last. None may be above
  int32_t* positions;  // [n], the caller's to write: 0, 1, 2, ...

  Key* sorted;     // [n]
  int32_t* order;  // [n] positions, stably sorted by key

  char* sort_temp;
  int64_t sort_bytes;
};

// Device memory for a stable sort of n < 2^31 words by the bits from `bit` on that numbers up to `limit`
// have.
struct WordSort {
  WordSort(int64_t n, uint64_t limit, int bit, Arena* arena);

  int bit, end;
  uint64_t* words;   // [n], the caller's to write
  uint64_t* sorted;  // [n]

  char* sort_temp;
  int64_t sort_bytes;
};

// Sorts the first `count` words. Does not wait.
int SortWordsCuda(const WordSort& sort, int64_t count, GpuStream stream);

// The keys of ids [count], and positions. Ids out of [0, limit) become `limit`: they come last. Does not
// wait.
template <typename Id, typename Key>
int KeysOfIdsCuda(const Id* ids, int64_t count, const KeySort<Key>& sort, GpuStream stream);

// The groups of equal keys; those of `limit` take no part.
template <typename Key>
struct KeyGroups : KeySort<Key> {
  KeyGroups(int64_t n, int64_t limit, Arena* arena);

  GroupCounts* counts;
  int64_t* unique;  // [counts->unique] ascending keys
  int32_t* starts;  // [counts->unique + 1] into order
  int32_t* group;   // [n] the group of order[i], counted from 1

  char* scan_temp;
  int64_t scan_bytes;
};

inline bool ShortKeys(int64_t limit) { return limit < 0xffffffffll; }

// Does not wait. n > 0.
template <typename Key>
int GroupKeysCuda(const KeyGroups<Key>& groups, GpuStream stream);

}  // namespace largeout

#endif  // LARGEOUT_COMMON_GROUP_CUDA_H_
