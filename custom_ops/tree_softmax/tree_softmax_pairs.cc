// Makes (token, node) pairs, sorted by node, of targets; and the checks that make later indexing safe.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "tree_softmax/tree_softmax.h"

namespace largeout {
namespace {

constexpr int64_t kWalkTokens = 256;  // a block of tokens walks up in step, so that their cache misses overlap
constexpr int64_t kWalkCycles = 2000;

struct Step {
  int32_t node, row;
};

struct WalkBlock {
  std::vector<Step> steps;  // step after step for all tokens still on the way
  std::vector<int32_t> lane;
  int64_t bad = -1;
  TreeStatus status = TreeStatus::kOk;
};

// The node that holds a row, or -1 where the arrays contradict each other.
int32_t NodeOfRow(const TreeArrays& tree, int32_t row) {
  int64_t node = tree.row_hint[row >> 4];
  if (node < 0 || node >= tree.nodes) return -1;
  for (int i = 0; i < 16 && node + 1 < tree.nodes && tree.node_start[node + 1] <= row; ++i) ++node;
  return tree.node_start[node] <= row && row < tree.node_start[node + 1] ? static_cast<int32_t>(node) : -1;
}

template <typename Id>
void Walk(const TreeArrays& tree, const Id* targets, const float* weights, int64_t begin, int64_t end, int32_t* depth,
          WalkBlock* block) {
  struct Climber {
    int32_t lane, row, node;
  };
  Climber climbers[kWalkTokens];
  int64_t count = 0;
  const auto fail = [&](TreeStatus status, int64_t position) {
    if (block->bad < 0 || position < block->bad) block->status = status, block->bad = position;
  };
  for (int64_t t = begin; t < end; ++t) {
    depth[t] = 0;
    if (weights != nullptr && weights[t] == 0.f) continue;
    if (targets[t] < 0 || static_cast<int64_t>(targets[t]) >= tree.classes) return fail(TreeStatus::kBadTarget, t);
    __builtin_prefetch(tree.class_row + targets[t]);
    climbers[count++].lane = static_cast<int32_t>(t - begin);
  }
  for (int64_t i = 0; i < count; ++i) {
    Climber& c = climbers[i];
    c.row = tree.class_row[targets[begin + c.lane]];
    if (c.row < 0 || c.row >= tree.rows) return fail(TreeStatus::kBadTree, begin + c.lane);
    __builtin_prefetch(tree.row_hint + (c.row >> 4));
  }
  for (int64_t i = 0; i < count; ++i) {
    const int32_t hint = tree.row_hint[climbers[i].row >> 4];
    if (hint >= 0 && hint < tree.nodes) __builtin_prefetch(tree.node_start + hint);
  }
  for (int64_t i = 0; i < count; ++i) {
    Climber& c = climbers[i];
    c.node = NodeOfRow(tree, c.row);
    if (c.node < 0) return fail(TreeStatus::kBadTree, begin + c.lane);
    __builtin_prefetch(tree.node_parent + c.node);
    __builtin_prefetch(tree.node_row + c.node);
  }
  while (count > 0) {
    int64_t left = 0;
    for (int64_t i = 0; i < count; ++i) {
      Climber c = climbers[i];
      block->steps.push_back({c.node, c.row});
      block->lane.push_back(c.lane);
      ++depth[begin + c.lane];
      const int32_t parent = tree.node_parent[c.node];
      if (parent < 0) continue;
      c.row = tree.node_row[c.node];
      if (parent >= c.node || c.row < 0 || c.row >= tree.rows) return fail(TreeStatus::kBadTree, begin + c.lane);
      c.node = parent;
      __builtin_prefetch(tree.node_parent + parent);
      __builtin_prefetch(tree.node_row + parent);
      climbers[left++] = c;
    }
    count = left;
  }
}

// Stable radix sort of slots by node.
void SortByNode(const std::vector<Step>& steps, int64_t nodes, std::vector<int32_t>* order) {
  constexpr int kBits = 11;
  struct Keyed {
    uint32_t node;
    int32_t slot;
  };
  const int64_t n = static_cast<int64_t>(steps.size());
  std::vector<Keyed> a(n), b(n);
  for (int64_t i = 0; i < n; ++i) a[i] = {static_cast<uint32_t>(steps[i].node), static_cast<int32_t>(i)};
  std::vector<int64_t> at(int64_t{1} << kBits);
  for (int shift = 0; shift < 32 && ((nodes - 1) >> shift) > 0; shift += kBits) {
    constexpr uint32_t kMask = (1u << kBits) - 1;
    std::fill(at.begin(), at.end(), 0);
    for (const Keyed& x : a) ++at[(x.node >> shift) & kMask];
    int64_t sum = 0;
    for (int64_t& c : at) {
      const int64_t here = c;
      c = sum;
      sum += here;
    }
    for (const Keyed& x : a) b[at[(x.node >> shift) & kMask]++] = x;
    a.swap(b);
  }
  order->resize(n);
  for (int64_t i = 0; i < n; ++i) (*order)[i] = a[i].slot;
}

template <typename Id>
TreeStatus BuildTreePairs(const TreeArrays& tree, const Id* targets, const float* weights, int64_t tokens,
                          Parallel* parallel, TreePairs* pairs) {
  *pairs = TreePairs();
  const int64_t blocks = (tokens + kWalkTokens - 1) / kWalkTokens;
  std::vector<WalkBlock> walks(blocks);
  pairs->token_start.assign(tokens + 1, 0);
  int32_t* depth = pairs->token_start.data() + 1;
  parallel->For(blocks, kWalkTokens * kWalkCycles, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      Walk(tree, targets, weights, b * kWalkTokens, std::min(tokens, (b + 1) * kWalkTokens), depth, &walks[b]);
    }
  });
  int64_t total = 0;
  for (const WalkBlock& walk : walks) {
    total += static_cast<int64_t>(walk.steps.size());
    if (walk.status != TreeStatus::kOk) {
      pairs->bad_position = walk.bad;
      return walk.status;
    }
  }
  if (total > std::numeric_limits<int32_t>::max()) return TreeStatus::kTooManyPairs;
  for (int64_t t = 0; t < tokens; ++t) pairs->token_start[t + 1] += pairs->token_start[t];

  // Token-major slots, leaf to root, then sorted.
  std::vector<Step> steps(total);
  std::vector<int32_t> slot_token(total), next(pairs->token_start.begin(), pairs->token_start.end() - 1);
  for (int64_t b = 0; b < blocks; ++b) {
    for (size_t i = 0; i < walks[b].steps.size(); ++i) {
      const int64_t t = b * kWalkTokens + walks[b].lane[i];
      const int32_t slot = next[t]++;
      steps[slot] = walks[b].steps[i];
      slot_token[slot] = static_cast<int32_t>(t);
    }
  }
  SortByNode(steps, tree.nodes, &pairs->slot);
  pairs->token.resize(total);
  pairs->row.resize(total);
  for (int64_t p = 0; p < total; ++p) {
    const int32_t slot = pairs->slot[p];
    pairs->token[p] = slot_token[slot];
    pairs->row[p] = steps[slot].row;
    if (p == 0 || steps[slot].node != pairs->group_node.back()) {
      pairs->group_node.push_back(steps[slot].node);
      pairs->group_start.push_back(static_cast<int32_t>(p));
    }
  }
  pairs->group_start.push_back(static_cast<int32_t>(total));

  int64_t row_end = 0;  // of the group before
  for (size_t g = 0; g < pairs->group_node.size(); ++g) {
    const int64_t first = tree.node_start[pairs->group_node[g]], last = tree.node_start[pairs->group_node[g] + 1];
    const bool good = first >= 0 && last <= tree.rows;
    for (int64_t p = pairs->group_start[g]; p < pairs->group_start[g + 1]; ++p) {
      if (good && pairs->row[p] >= first && pairs->row[p] < last) continue;
      pairs->bad_position = pairs->token[p];
      return TreeStatus::kBadTree;
    }
    pairs->prob_count += (last - first) * (pairs->group_start[g + 1] - pairs->group_start[g]);
    pairs->touched_rows += last - first;
    pairs->ordered = pairs->ordered && first >= row_end;
    row_end = last;
  }
  return TreeStatus::kOk;
}

bool CheckSaved(const TreeArrays& tree, const TreeSaved& saved, int64_t tokens, int64_t* unique_rows,
                int64_t* prob_count) {
  int64_t row_end = 0;  // of the group before: rows ascend
  *unique_rows = *prob_count = 0;
  if (saved.group_start[0] != 0 || saved.group_start[saved.groups] != saved.pairs) return false;
  for (int64_t g = 0; g < saved.groups; ++g) {
    const int64_t node = saved.group_node[g], begin = saved.group_start[g], end = saved.group_start[g + 1];
    if (node < 0 || node >= tree.nodes || begin >= end || end > saved.pairs) return false;
    if (g > 0 && node <= saved.group_node[g - 1]) return false;
    const int64_t first = tree.node_start[node], last = tree.node_start[node + 1];
    if (first < row_end || last > tree.rows) return false;
    row_end = last;
    for (int64_t p = begin; p < end; ++p) {
      if (saved.pair_token[p] < 0 || saved.pair_token[p] >= tokens) return false;
      if (p > begin && saved.pair_token[p] <= saved.pair_token[p - 1]) return false;
      if (saved.pair_row[p] < first || saved.pair_row[p] >= last) return false;
    }
    *unique_rows += last - first;
    *prob_count += (last - first) * (end - begin);
  }
  return true;
}

}  // namespace

template <>
template <typename Id>
int TreeSoftmaxCpu::FindPaths(const TreeArrays& tree, const Id* targets, const float* weights, int64_t tokens,
                              int64_t /*dim*/, int64_t /*likely_pairs*/, Scratch* /*lasting*/,
                              TreePaths* paths) {
  paths->status = BuildTreePairs(tree, targets, weights, tokens, call_.parallel, &loss_);
  paths->bad_position = loss_.bad_position;
  if (paths->bad_position >= 0) paths->bad_target = static_cast<int64_t>(targets[paths->bad_position]);
  paths->pairs = static_cast<int64_t>(loss_.token.size());
  paths->groups = static_cast<int64_t>(loss_.group_node.size());
  paths->probs = loss_.prob_count;
  return 0;
}

template <>
TreeTouched TreeSoftmaxCpu::GradientPlan() const {
  return {loss_.ordered, loss_.touched_rows, loss_.prob_count};
}

template <>
TreeTouched TreeSoftmaxCpu::Resume(const TreeTouched& plan) {
  return plan;
}

template <>
template <typename T>
int TreeSoftmaxCpu::Check(const TreeArrays& tree, const TreeSaved& saved, int64_t tokens, int64_t /*dim*/,
                          TreeTouched* touched) {
  touched->ok = CheckSaved(tree, saved, tokens, &touched->rows, &touched->probs);
  return 0;
}

template int TreeSoftmaxCpu::FindPaths<int32_t>(const TreeArrays&, const int32_t*, const float*, int64_t,
                                                int64_t, int64_t, Scratch*, TreePaths*);
template int TreeSoftmaxCpu::FindPaths<int64_t>(const TreeArrays&, const int64_t*, const float*, int64_t,
                                                int64_t, int64_t, Scratch*, TreePaths*);
template int TreeSoftmaxCpu::Check<float>(const TreeArrays&, const TreeSaved&, int64_t, int64_t,
                                          TreeTouched*);
template int TreeSoftmaxCpu::Check<bfloat16>(const TreeArrays&, const TreeSaved&, int64_t, int64_t,
                                             TreeTouched*);

}  // namespace largeout
