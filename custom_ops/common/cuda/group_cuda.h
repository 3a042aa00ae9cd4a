// The CUDA twin of GroupIds (common/sort.h): a stable radix sort of (key, position) over the bits that keys
// have, then the groups of equal keys. The same bits on every run.
//
//   Arena arena(workspace);                              // a null workspace only adds up: arena.bytes()
//   KeyGroups<uint32_t> groups(n, limit, &arena);
//   KeysOfIdsCuda(ids, groups, stream);                  // or another kernel that writes keys and positions
//   GroupKeysCuda(groups, stream);
#ifndef LARGEOUT_COMMON_GROUP_CUDA_H_
#define LARGEOUT_COMMON_GROUP_CUDA_H_

#include "common/arena.h"
#include "common/cuda/cuda.h"

namespace largeout {

struct GroupCounts {
  int64_t unique, valid;  // groups; keys that are in one
};

// Device memory for n < 2^31 keys, Key uint32_t (where ShortKeys(limit)) or uint64_t.
template <typename Key>
struct KeyGroups {
  KeyGroups(int64_t n, int64_t limit, Arena* arena);

  int64_t n, limit;
  Key* keys;           // [n], the caller's to write; those of `limit` take no part. None may be above
  int32_t* positions;  // [n], the caller's to write: 0, 1, 2, ...

  GroupCounts* counts;
  int64_t* unique;  // [counts->unique] ascending keys
  int32_t* starts;  // [counts->unique + 1] into order
  int32_t* order;   // [n] positions, stably sorted by key; those that take no part come last
  int32_t* group;   // [n] the group of order[i], counted from 1

  Key* sorted;
  char* temp;
  int64_t temp_bytes;
};

inline bool ShortKeys(int64_t limit) { return limit < 0xffffffffll; }

// The keys of ids [n], and positions. Ids out of [0, limit) become `limit`: they come last. Does not wait.
template <typename Id, typename Key>
int KeysOfIdsCuda(const Id* ids, const KeyGroups<Key>& groups, GpuStream stream);

// Does not wait. n > 0.
template <typename Key>
int GroupKeysCuda(const KeyGroups<Key>& groups, GpuStream stream);

}  // namespace largeout

#endif  // LARGEOUT_COMMON_GROUP_CUDA_H_
