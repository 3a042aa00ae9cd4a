// Grouping of ids: the one place where row ids are sorted and made unique (embedding gradient, row update, tree softmax).
#ifndef LARGEOUT_COMMON_SORT_H_
#define LARGEOUT_COMMON_SORT_H_

#include <cstdint>
#include <vector>

namespace largeout {

class Parallel;

// Positions grouped by id: group g has id unique[g] and the positions order[starts[g] .. starts[g+1]), in ascending order.
struct Groups {
  std::vector<int64_t> unique;  // ascending
  std::vector<int64_t> starts;  // unique.size() + 1
  std::vector<int32_t> order;  // positions in ids, or their values; positions with a negative id are left out
};

// Stable radix sort: O(n) passes over the bits in which the ids differ. n < 2^31. Ids below zero are skipped.
// With `parallel` large inputs are sorted by its threads, with the same result. With `values` [n], `order`
// has the value of each position in place of the position.
template <typename Id>
void GroupIds(const Id* ids, int64_t n, Groups* groups, Parallel* parallel = nullptr,
              const int32_t* values = nullptr);

// True when ids are >= 0 and each is greater than the one before: nothing to sort, nothing to sum.
template <typename Id>
bool StrictlyIncreasing(const Id* ids, int64_t n);

}  // namespace largeout

#endif  // LARGEOUT_COMMON_SORT_H_
