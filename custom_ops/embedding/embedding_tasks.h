// The split of the embedding kernels' outputs over threads. Internal.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_TASKS_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_TASKS_H_

#include "common/parallel.h"

namespace largeout {

// Splits things of uneven weight: item i stands for the units [start(i) + i, start(i + 1) + i + 1), its weight and one
// more, and belongs to the task that holds its first unit. Empty items are kept, and no task gets much more than its share.
template <typename Start, typename Body>
void ForWeighted(int64_t items, const Start& start, int64_t cost, Parallel* parallel, const Body& body) {
  if (items == 0) return;
  const auto first_from = [&](int64_t unit) {
    int64_t low = 0, high = items;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (start(middle) + middle < unit) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  parallel->For(start(items) + items, cost, [&](int64_t begin, int64_t end) {
    const int64_t first = first_from(begin), last = first_from(end);
    if (first < last) body(first, last);
  });
}

// Cycles that a row of `bytes` costs: what arrives from memory, and the work of starting a row.
inline int64_t RowCost(int64_t bytes) { return 40 + bytes / 4; }

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_TASKS_H_
