// The plan of the gradient: which tasks may run together. Internal to the family; see tree_softmax_grad.cc.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_WAVES_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_WAVES_H_

#include "tree_softmax/tree_softmax_tasks.h"

namespace largeout {

// Consecutive pairs of one large group whose row gradients are taken together. A group has several only where its
// probabilities alone exceed the scratch memory; first and last say which these are.
struct TreeRange {
  int64_t group, begin, end;
  int64_t kept;     // its probabilities in the wave's scratch
  int64_t partial;  // its rows' first row in the sums carried from range to range, or kept for the wave
  bool first, last;
};

// Tasks [task_begin, task_end) write disjoint memory; the ranges [range_begin, range_end) come from them.
struct TreeWave {
  int64_t task_begin, task_end, range_begin, range_end;
  int32_t level;
};

struct TreeWaves {
  // kept_limit: floats. sums: those of the rows of every range are kept until its wave is over, as many as
  // that too.
  TreeWaves(const TreeArrays& tree, const TreeGroups& groups, const TreeSaved& saved, int64_t dim,
            int64_t kept_limit, bool sums);

  // Rows of sums in all.
  int64_t sum_rows() const { return partial_size + wave_rows; }

  std::vector<int32_t> level;       // of a group, ascending; 0: the root
  std::vector<TreeTask> tasks;
  std::vector<int64_t> task_range;  // the range of a task, or -1: whole small groups
  std::vector<TreeRange> ranges;
  std::vector<TreeWave> waves;
  int64_t kept_size = 0;     // floats of scratch for the largest wave
  int64_t partial_size = 0;  // rows carried between ranges
  int64_t wave_rows = 0;     // rows of the other ranges of the largest wave, where their sums are kept

 private:
  void AddSplit(const TreeGroups& groups, int64_t g, int64_t dim, bool keep, int64_t kept_limit, bool sums);
  void CloseWave(int32_t level);

  int64_t kept_ = 0, wave_rows_ = 0;  // by the wave being built
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_WAVES_H_
