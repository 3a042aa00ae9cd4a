// Cuts the work on groups into tasks: by its cost alone, never by the number of threads. Internal to the family.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TASKS_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TASKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/tasks.h"
#include "tree_softmax/tree_softmax.h"

namespace largeout {

// The groups of a batch and what belongs to each; pointers into the caller's arrays.
struct TreeGroups {
  TreeGroups(const TreeArrays& tree, const int32_t* node, const int32_t* start, int64_t groups)
      : count(groups), start(start), first_row(groups), size(groups), prob_start(groups), row_start(groups) {
    int64_t probs = 0, rows = 0;
    for (int64_t g = 0; g < groups; ++g) {
      first_row[g] = tree.node_start[node[g]];
      size[g] = tree.node_start[node[g] + 1] - first_row[g];
      prob_start[g] = probs;
      row_start[g] = rows;
      probs += size[g] * (start[g + 1] - start[g]);
      rows += size[g];
    }
  }
  int64_t pairs(int64_t g) const { return start[g + 1] - start[g]; }

  int64_t count;
  const int32_t* start;
  std::vector<int64_t> first_row, size, prob_start, row_start;
};

// Multiply-adds of one task (about 50 microseconds), and what moving one table element costs beside one multiply-add when
// it comes from memory.
constexpr int64_t kTaskCost = int64_t{1} << 21;
constexpr int64_t kElementCost = 8;

// Groups [group, group_end) whole, or (group_end == group + 1) its pairs [begin, end).
struct TreeTask {
  int64_t group, group_end, begin, end;
};

// Tokens of one task of a group that is split: a multiple of the register tiles' 3 and 4.
inline int64_t TokenBlock(int64_t size, int64_t dim) {
  const int64_t fit = kTaskCost / std::max<int64_t>(1, size * dim);
  return std::min<int64_t>(480, std::max<int64_t>(48, fit / 12 * 12));
}

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TASKS_H_
