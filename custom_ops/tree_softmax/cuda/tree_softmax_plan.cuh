// Functions that plan a batch: how its groups are cut into pieces (TreeWork), and what the host learns of it.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PLAN_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PLAN_CUH_

#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {

// starts [chunks + 1], of chunks of `length` probabilities.
int FindChunkStarts(const TreeArrays& tree, const TreeWork& work, int64_t length, int64_t chunks,
                    ChunkStart* starts, GpuStream stream);

// Totals that are computed on the device and copied to the host.
struct TreeTotals {
  TreeOffsets sums;
  int64_t groups, max_children, levels;
  int64_t root_pairs, root_children;  // of the root, where there is a pair and it is alone on its level
  int64_t bad;        // not 0: the groups count as none
  int64_t unordered;  // not 0: their rows do not ascend
  unsigned long long narrow_levels, wide_levels;
  // Of a loss.
  unsigned long long pairs;
  long long bad_path;  // the smallest 2 * position (+ 1: the tree's fault), or kNoBadPath
};
constexpr long long kNoBadPath = 0x7fffffffffffffffll;

// Returns the number of groups, at most `most`; 0 where something is bad.
__device__ __forceinline__ int64_t CountOf(const TreeTotals& totals, int64_t most) {
  return LoadRelaxed(&totals.bad) != 0 ? 0 : min(totals.groups, most);
}

// Writes the running sums of the groups, and cuts them into levels. The number of groups is on the device
// (device_totals->groups, at most max_groups); all totals are read back: one wait. keep_partials: row
// gradients of wide nodes that several chunks may add to are summed in float32 before they are rounded.
int CutTreeGroups(const TreeArrays& tree, const int32_t* group_node, const int32_t* group_start,
                  int64_t max_groups, TreeTotals* device_totals, int64_t dim, bool keep_partials,
                  Scratch* scratch, GpuStream stream, TreeWork* work, TreeTotals* totals);
// Lists the pieces of what was cut, for the loss, and for a gradient (tiles: probabilities are computed
// again).
int ListLossPieces(Scratch* scratch, GpuStream stream, TreeWork* work);
int ListGradPieces(const TreeArrays& tree, bool tiles, Scratch* scratch, GpuStream stream, TreeWork* work);

// Cuts up to `groups` groups into levels: level_start, and in totals how many there are and what nodes they
// have, and whether rows ascend.
int CutTreeLevels(const TreeArrays& tree, const int32_t* group_node, const int32_t* group_start,
                  int64_t groups, TreeTotals* totals, Scratch* scratch, GpuStream stream,
                  const int32_t** level_start);

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PLAN_CUH_
