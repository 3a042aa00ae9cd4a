// Cuts groups into levels, whose nodes are those of a batch that one launch may work on: a token is in one of
// them at most.
#include <cub/device/device_scan.cuh>

#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_plan.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

// The group of every group's parent; -1 at the roots of a forest, whose nodes have no parent.
__global__ void FindParents(TreeArrays tree, const int32_t* group_node, int64_t most, TreeTotals* totals,
                            int32_t* parent_group) {
  const int64_t g = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (g >= most) return;
  parent_group[g] = -1;  // of a bad tree, and beyond the groups, too: a scan reads all of them
  if (g >= CountOf(*totals, most)) return;
  const int node = group_node[g], parent = tree.node_parent[node];
  if (g > 0 && tree.node_start[group_node[g - 1] + 1] > tree.node_start[node])
    StoreRelaxed(&totals->unordered, int64_t{1});
  if (parent >= node) {  // the order of the nodes is not one from the roots down
    StoreRelaxed(&totals->bad, int64_t{1});
    return;
  }
  const int64_t found = FirstNot(0, g, [&](int64_t i) { return group_node[i] < parent; });
  if (found < g && group_node[found] == parent) parent_group[g] = static_cast<int32_t>(found);
}

struct Maximum {
  __host__ __device__ int32_t operator()(int32_t a, int32_t b) const { return a > b ? a : b; }
};

// Groups are cut, in their order, into levels: a new one begins at the first group whose parent is in the
// present one (TreeWaves says the same on the CPU). With breadth-first numbers these are the depths of a
// tree; the roots of a forest need not have one depth. deepest[g]: the largest parent_group up to g, which
// does not fall. So the first group with a parent from `begin` on, next[begin], is found by halving.
__global__ void FindNextLevels(const int32_t* deepest, int64_t most, const TreeTotals* totals,
                               int32_t* next) {
  const int64_t begin = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  const int64_t groups = CountOf(*totals, most);
  if (begin >= groups) return;
  // A parent comes before its children.
  next[begin] =
      static_cast<int32_t>(FirstNot(begin + 1, groups, [&](int64_t g) { return deepest[g] < begin; }));
}

// One thread: there are as many steps as levels.
__global__ void CutLevels(const int32_t* next, int64_t most, TreeTotals* totals, int32_t* level_start) {
  const int64_t groups = CountOf(*totals, most);
  int64_t levels = 0;
  for (int64_t begin = 0; begin < groups; begin = next[begin]) level_start[levels++] = static_cast<int32_t>(begin);
  level_start[levels] = static_cast<int32_t>(groups);
  totals->levels = levels;
}

// Marks the levels that have narrow nodes, and those that have wide ones.
__global__ void MarkLevels(TreeArrays tree, const int32_t* group_node, const int32_t* group_start,
                           int64_t most, const int32_t* level_start, TreeTotals* totals) {
  const int64_t g = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (g >= CountOf(*totals, most)) return;
  const int64_t level = LastStart(totals->levels, g, [&](int64_t i) { return level_start[i]; });
  const int node = group_node[g];
  const int64_t c = tree.node_start[node + 1] - tree.node_start[node];
  const bool wide = IsWide(group_start[g + 1] - group_start[g], c);
  const unsigned long long bit = 1ull << (level < 63 ? level : 63);
  unsigned long long* mask = wide ? &totals->wide_levels : &totals->narrow_levels;
  if ((LoadRelaxed(mask) & bit) == 0) atomicOr(mask, bit);  // the read only saves atomics
}

}  // namespace

int CutTreeLevels(const TreeArrays& tree, const int32_t* group_node, const int32_t* group_start,
                  int64_t groups, TreeTotals* totals, Scratch* scratch, GpuStream stream,
                  const int32_t** level_start) {
  size_t temp_bytes = 0;
  int32_t* none = nullptr;
  const int n = static_cast<int>(groups);
  LARGEOUT_CUDA_RETURN(
      cub::DeviceScan::InclusiveScan(nullptr, temp_bytes, none, none, Maximum(), n, stream));
  auto* starts = scratch->Take<int32_t>(groups + 1);
  auto* parent_group = scratch->Take<int32_t>(groups);
  auto* deepest = scratch->Take<int32_t>(groups);
  void* temp = scratch->Allocate(static_cast<int64_t>(temp_bytes));
  if (starts == nullptr || parent_group == nullptr || deepest == nullptr || temp == nullptr) return kNoMemory;
  const unsigned blocks = static_cast<unsigned>(CeilDiv(groups, kThreads));
  LARGEOUT_RETURN_IF_ERROR(
      Launch(FindParents, blocks, kThreads, 0, stream, tree, group_node, groups, totals, parent_group));
  LARGEOUT_CUDA_RETURN(
      cub::DeviceScan::InclusiveScan(temp, temp_bytes, parent_group, deepest, Maximum(), n, stream));
  int32_t* next = parent_group;  // which is no longer needed
  LARGEOUT_RETURN_IF_ERROR(Launch(FindNextLevels, blocks, kThreads, 0, stream, deepest, groups, totals, next));
  LARGEOUT_RETURN_IF_ERROR(Launch(CutLevels, 1, 1, 0, stream, next, groups, totals, starts));
  *level_start = starts;
  return Launch(MarkLevels, blocks, kThreads, 0, stream, tree, group_node, group_start, groups, starts, totals);
}

}  // namespace largeout
