#include "tree_softmax/tree_softmax_waves.h"

#include "tree_softmax/tree_softmax_kernels.h"

namespace largeout {
namespace {

// A group of more tokens than one pass of the row-gradient kernel takes, or of more work than one task should be.
bool Split(int64_t pairs, int64_t size, int64_t dim) {
  return pairs > kTreeSumDepth || (pairs > 1 && pairs * size * dim > 8 * kTaskCost) || size * dim > 8 * kTaskCost;
}

}  // namespace

TreeWaves::TreeWaves(const TreeArrays& tree, const TreeGroups& groups, const TreeSaved& saved, int64_t dim,
                     int64_t kept_limit, bool sums)
    : level(groups.count) {
  const bool keep = saved.probs == nullptr;
  int64_t run_cost = kTaskCost;
  for (int64_t g = 0; g < groups.count; ++g) {
    // Breadth-first numbers make levels contiguous. A merely topological order gets more waves, and the same result.
    const int32_t parent = tree.node_parent[saved.group_node[g]];
    const int32_t* above = std::lower_bound(saved.group_node, saved.group_node + g, parent);
    const bool found = above != saved.group_node + g && *above == parent;
    level[g] = std::max(g > 0 ? level[g - 1] : 0, found ? level[above - saved.group_node] + 1 : 0);
    if (g > 0 && level[g] != level[g - 1]) {
      CloseWave(level[g - 1]);
      run_cost = kTaskCost;
    }
    const int64_t pairs = groups.pairs(g), size = groups.size[g];
    if (Split(pairs, size, dim)) {
      AddSplit(groups, g, dim, keep, kept_limit, sums);
      run_cost = kTaskCost;
      continue;
    }
    // Rows of no elements cost something too: the first group of a wave must start a task.
    const int64_t cost = std::max<int64_t>(1, size * dim * (2 * pairs + 2 * kElementCost));
    if (run_cost + cost > kTaskCost) {
      tasks.push_back({g, g + 1, groups.start[g], groups.start[g + 1]});
      task_range.push_back(-1);
      run_cost = cost;
    } else {
      tasks.back().group_end = g + 1;
      tasks.back().end = groups.start[g + 1];
      run_cost += cost;
    }
  }
  if (groups.count > 0) CloseWave(level.back());
  // Sums that are kept for a wave follow those that are carried, all of which are known now.
  for (TreeRange& range : ranges) {
    if (range.first && range.last) range.partial += partial_size;
  }
}

void TreeWaves::AddSplit(const TreeGroups& groups, int64_t g, int64_t dim, bool keep, int64_t kept_limit,
                         bool sums) {
  const int64_t size = groups.size[g], begin = groups.start[g], end = groups.start[g + 1];
  if (keep && kept_ > 0 && kept_ + (end - begin) * size > kept_limit) CloseWave(level[g]);
  if (sums && wave_rows_ > 0 && (wave_rows_ + size) * dim > kept_limit) CloseWave(level[g]);
  const int64_t most = keep ? std::max<int64_t>(1, kept_limit / size) : end - begin;  // pairs of a range
  const bool carried = end - begin > most;
  const int64_t block = TokenBlock(size, dim);
  for (int64_t from = begin; from < end; from += most) {
    const int64_t to = std::min(end, from + most);
    if (from > begin) CloseWave(level[g]);
    ranges.push_back({g, from, to, kept_, carried ? partial_size : wave_rows_, from == begin, to == end});
    if (keep) kept_ += (to - from) * size;
    kept_size = std::max(kept_size, kept_);
    for (int64_t b = from; b < to; b += block) {
      tasks.push_back({g, g + 1, b, std::min(to, b + block)});
      task_range.push_back(static_cast<int64_t>(ranges.size()) - 1);
    }
  }
  if (carried) {
    partial_size += size;
  } else if (sums) {
    wave_rows_ += size;
    wave_rows = std::max(wave_rows, wave_rows_);
  }
}

void TreeWaves::CloseWave(int32_t at_level) {
  const int64_t task_begin = waves.empty() ? 0 : waves.back().task_end;
  const int64_t range_begin = waves.empty() ? 0 : waves.back().range_end;
  waves.push_back({task_begin, static_cast<int64_t>(tasks.size()), range_begin, static_cast<int64_t>(ranges.size()), at_level});
  kept_ = wave_rows_ = 0;
}

}  // namespace largeout
