// Pairs of a batch on the device: every token's path (counted, then written), sorted by node, cut into
// groups.
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_plan.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

// The node that holds `row` (WalkPath checks that it does), or -1 where row or the hint is out of range.
__device__ int NodeOfRow(const TreeArrays& tree, int64_t row) {
  if (row < 0 || row >= tree.rows) return -1;
  int64_t node = tree.row_hint[row / 16];
  if (node < 0 || node >= tree.nodes) return -1;
  for (int step = 0; step < 16 && node + 1 < tree.nodes && tree.node_start[node + 1] <= row; ++step) ++node;
  return static_cast<int>(node);
}

// Calls emit(node, row) from leaf to root; the length, or -1 where the arrays make no path. Nodes decrease on
// a path, so it ends.
template <typename Emit>
__device__ int WalkPath(const TreeArrays& tree, int64_t target, Emit emit) {
  int length = 0;
  int32_t row = tree.class_row[target];
  for (int32_t node = NodeOfRow(tree, row);;) {
    if (node < 0) return -1;
    const int64_t first = tree.node_start[node], last = tree.node_start[node + 1];
    if (first < 0 || row < first || row >= last || last > tree.rows) return -1;
    emit(node, row);
    ++length;
    const int32_t parent = tree.node_parent[node];
    if (parent < 0) return length;
    if (parent >= node) return -1;
    row = tree.node_row[node];
    node = parent;
  }
}

__global__ void ClearTotals(TreeTotals* totals) {
  *totals = TreeTotals{};
  totals->bad_path = kNoBadPath;
}

template <typename Id>
__global__ void CountPaths(TreeArrays tree, const Id* targets, const float* weights, int64_t tokens,
                           int32_t* lengths, TreeTotals* totals) {
  const int64_t token = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  int length = 0;
  if (token < tokens && (weights == nullptr || weights[token] != 0.f)) {
    const int64_t target = static_cast<int64_t>(targets[token]);
    if (target < 0 || target >= tree.classes) {
      atomicMin(&totals->bad_path, static_cast<long long>(2 * token));
    } else {
      length = WalkPath(tree, target, [](int, int) {});
      if (length < 0) {
        atomicMin(&totals->bad_path, static_cast<long long>(2 * token + 1));
        length = 0;
      }
    }
  }
  if (token <= tokens) lengths[token] = length;  // [tokens]: 0, so that the scan ends in the total
  const long long sum = WarpSum(static_cast<long long>(length));
  if ((threadIdx.x & 31) == 0 && sum > 0) atomicAdd(&totals->pairs, static_cast<unsigned long long>(sum));
}

// Returns the number of pairs, or 0 where there is not room for all of them.
__device__ __forceinline__ int64_t PairsIn(int64_t room, const TreeTotals* totals) {
  const int64_t pairs = static_cast<int64_t>(totals->pairs);
  return pairs <= room ? pairs : 0;
}

// Token-major slots of the pairs.
struct PairSlots {
  int32_t *node, *row, *token, *slot;
};

template <typename Id>
__global__ void WritePaths(TreeArrays tree, const Id* targets, const int32_t* token_start, int64_t tokens,
                           int64_t room, const TreeTotals* totals, PairSlots out) {
  const int64_t token = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (token >= tokens || PairsIn(room, totals) == 0 || token_start[token] == token_start[token + 1]) return;
  int slot = token_start[token];
  WalkPath(tree, static_cast<int64_t>(targets[token]), [&](int node, int row) {
    out.node[slot] = node;
    out.row[slot] = row;
    out.token[slot] = static_cast<int32_t>(token);
    out.slot[slot] = slot;
    ++slot;
  });
}

// The rest of the room: pairs of no node, which the sort leaves at the end.
__global__ void FillRoom(int64_t nodes, int64_t room, const TreeTotals* totals, PairSlots out) {
  const int64_t slot = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (slot >= room || slot < PairsIn(room, totals)) return;
  out.node[slot] = static_cast<int32_t>(nodes);
  out.slot[slot] = static_cast<int32_t>(slot);
}

// After the sort: fetches token and row of every pair, and flags the first pair of every node.
__global__ void GatherPairs(PairSlots slots, const int32_t* pair_slot, const int32_t* pair_node, int64_t room,
                            const TreeTotals* totals, int32_t* pair_token, int32_t* pair_row,
                            int32_t* first) {
  const int64_t p = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (p >= room) return;
  if (p >= PairsIn(room, totals)) {
    first[p] = 0;
    return;
  }
  const int slot = pair_slot[p];
  pair_token[p] = slots.token[slot];
  pair_row[p] = slots.row[slot];
  first[p] = p == 0 || pair_node[p] != pair_node[p - 1];
}

// pair_group comes in as the running count of flags, from 1; it becomes the group, from 0.
__global__ void WriteGroups(const int32_t* pair_node, int64_t room, int32_t* pair_group, int32_t* group_node,
                            int32_t* group_start, TreeTotals* totals) {
  const int64_t p = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  const int64_t pairs = PairsIn(room, totals);
  if (p >= pairs) return;
  const int group = pair_group[p] - 1;
  pair_group[p] = group;
  if (p == 0 || pair_node[p] != pair_node[p - 1]) {
    group_node[group] = pair_node[p];
    group_start[group] = static_cast<int32_t>(p);
  }
  if (p == pairs - 1) {
    group_start[group + 1] = static_cast<int32_t>(pairs);
    totals->groups = group + 1;
  }
}

unsigned Blocks(int64_t n) { return static_cast<unsigned>(CeilDiv(n, kThreads)); }

int BitsOf(int64_t n) {
  int bits = 1;
  while (bits < 31 && (n >> bits) != 0) ++bits;
  return bits;
}

constexpr int64_t kMostPairs = 0x7ffffffe;

// Takes memory for n elements of a type, or returns.
#define LARGEOUT_SCRATCH(type, name, n) \
  type* name = scratch->Take<type>(n);  \
  if (name == nullptr) return kNoMemory

// Writes the paths that were counted, sorts their pairs by node, and cuts the groups, in memory for `room`
// pairs. Waits; *read says whether they are more than that: then nothing else was done.
template <typename Id>
int GroupPairs(const TreeArrays& tree, const Id* targets, const int32_t* token_start, int64_t tokens,
               int64_t room, int64_t dim, TreeTotals* totals, Scratch* scratch, GpuStream stream,
               TreeLossPlan* plan, TreeTotals* read) {
  LARGEOUT_SCRATCH(int32_t, slot_node, room);
  LARGEOUT_SCRATCH(int32_t, slot_row, room);
  LARGEOUT_SCRATCH(int32_t, slot_token, room);
  LARGEOUT_SCRATCH(int32_t, slot, room);
  LARGEOUT_SCRATCH(int32_t, pair_node, room);
  LARGEOUT_SCRATCH(int32_t, pair_slot, room);
  LARGEOUT_SCRATCH(int32_t, pair_token, room);
  LARGEOUT_SCRATCH(int32_t, pair_row, room);
  LARGEOUT_SCRATCH(int32_t, pair_group, room);
  const int64_t most = std::min(room, tree.nodes);
  LARGEOUT_SCRATCH(int32_t, group_node, most);
  LARGEOUT_SCRATCH(int32_t, group_start, most + 1);
  const PairSlots slots{slot_node, slot_row, slot_token, slot};
  LARGEOUT_RETURN_IF_ERROR(Launch(WritePaths<Id>, Blocks(tokens), kThreads, 0, stream, tree, targets,
                                  token_start, tokens, room, totals, slots));
  LARGEOUT_RETURN_IF_ERROR(
      Launch(FillRoom, Blocks(room), kThreads, 0, stream, tree.nodes, room, totals, slots));
  // Slots are in the order of the tokens and the sort is stable: within a node, pairs are in the order of the
  // tokens.
  const int bits = BitsOf(tree.nodes);
  size_t temp_bytes = 0;
  LARGEOUT_CUDA_RETURN(cub::DeviceRadixSort::SortPairs(nullptr, temp_bytes, slot_node, pair_node, slot,
                                                       pair_slot, static_cast<int>(room), 0, bits, stream));
  LARGEOUT_SCRATCH(char, sort_temp, temp_bytes);
  LARGEOUT_CUDA_RETURN(cub::DeviceRadixSort::SortPairs(sort_temp, temp_bytes, slot_node, pair_node, slot,
                                                       pair_slot, static_cast<int>(room), 0, bits, stream));
  int32_t* first = slot_node;  // the keys are no longer needed
  LARGEOUT_RETURN_IF_ERROR(Launch(GatherPairs, Blocks(room), kThreads, 0, stream, slots, pair_slot, pair_node,
                                  room, totals, pair_token, pair_row, first));
  LARGEOUT_CUDA_RETURN(cub::DeviceScan::InclusiveSum(nullptr, temp_bytes, first, pair_group, room, stream));
  LARGEOUT_SCRATCH(char, flag_temp, temp_bytes);
  LARGEOUT_CUDA_RETURN(cub::DeviceScan::InclusiveSum(flag_temp, temp_bytes, first, pair_group, room, stream));
  LARGEOUT_RETURN_IF_ERROR(Launch(WriteGroups, Blocks(room), kThreads, 0, stream, pair_node, room, pair_group,
                                  group_node, group_start, totals));
  plan->pair_token = pair_token;
  plan->pair_row = pair_row;
  plan->pair_slot = pair_slot;
  plan->pair_group = pair_group;
  return CutTreeGroups(tree, group_node, group_start, most, totals, dim, false, scratch, stream, &plan->work,
                       read);
}

// The part of a loss's plan that its gradient goes by: sizes, and copies of the sums and levels.
int KeepForGradient(const TreeWork& work, Scratch* lasting, GpuStream stream, TreeGradPlan* plan) {
  auto* offsets = lasting->Take<TreeOffsets>(work.groups + 1);
  auto* level_start = lasting->Take<int32_t>(work.levels + 1);
  if (offsets == nullptr || level_start == nullptr) return kNoMemory;
  LARGEOUT_RETURN_IF_ERROR(
      CopyOnDeviceCuda(work.offsets, (work.groups + 1) * sizeof(TreeOffsets), offsets, stream));
  LARGEOUT_RETURN_IF_ERROR(
      CopyOnDeviceCuda(work.level_start, (work.levels + 1) * sizeof(int32_t), level_start, stream));
  plan->work = work;
  plan->work.group_node = plan->work.group_start = nullptr;  // those that the loss saves
  plan->work.offsets = offsets;
  plan->work.level_start = level_start;
  return 0;
}

// Makes memory for likely_pairs pairs, and sorts as many. Where they suffice it waits for the stream once,
// for the numbers of pairs, groups and probabilities; otherwise, or if likely_pairs is 0, twice.
template <typename Id>
int PlanLoss(const TreeArrays& tree, const Id* targets, const float* weights, int64_t tokens, int64_t dim,
             int64_t likely_pairs, Scratch* scratch, Scratch* lasting, GpuStream stream, TreeLossPlan* plan) {
  *plan = TreeLossPlan();
  if (tokens == 0) return 0;
  LARGEOUT_SCRATCH(TreeTotals, totals, 1);
  LARGEOUT_SCRATCH(int32_t, lengths, tokens + 1);
  LARGEOUT_SCRATCH(int32_t, token_start, tokens + 1);
  LARGEOUT_RETURN_IF_ERROR(Launch(ClearTotals, 1, 1, 0, stream, totals));
  LARGEOUT_RETURN_IF_ERROR(Launch(CountPaths<Id>, Blocks(tokens + 1), kThreads, 0, stream, tree, targets,
                                  weights, tokens, lengths, totals));
  size_t temp_bytes = 0;
  LARGEOUT_CUDA_RETURN(
      cub::DeviceScan::ExclusiveSum(nullptr, temp_bytes, lengths, token_start, tokens + 1, stream));
  LARGEOUT_SCRATCH(char, scan_temp, temp_bytes);
  LARGEOUT_CUDA_RETURN(
      cub::DeviceScan::ExclusiveSum(scan_temp, temp_bytes, lengths, token_start, tokens + 1, stream));
  plan->token_start = token_start;
  TreeTotals read;
  const auto group_pairs = [&](int64_t room) {
    return GroupPairs(tree, targets, token_start, tokens, room, dim, totals, scratch, stream, plan, &read);
  };
  const int64_t room = std::clamp<int64_t>(likely_pairs, 0, kMostPairs);
  LARGEOUT_RETURN_IF_ERROR(room > 0 ? group_pairs(room)
                                    : CopyToHostCuda(totals, sizeof(read), &read, stream));
  if (read.bad_path != kNoBadPath) {
    plan->status = read.bad_path % 2 == 0 ? TreeStatus::kBadTarget : TreeStatus::kBadTree;
    plan->bad_position = read.bad_path / 2;
    return 0;
  }
  if (static_cast<int64_t>(read.pairs) > kMostPairs) {
    plan->status = TreeStatus::kTooManyPairs;
    return 0;
  }
  const int64_t pairs = static_cast<int64_t>(read.pairs);
  if (pairs > room) LARGEOUT_RETURN_IF_ERROR(group_pairs(pairs));
  plan->pairs = plan->work.pairs = pairs;
  plan->groups = plan->work.groups;
  plan->probs = plan->work.probs;
  if (pairs == 0) return 0;
  LARGEOUT_RETURN_IF_ERROR(KeepForGradient(plan->work, lasting, stream, &plan->gradient));
  plan->gradient.ok = read.unordered == 0;
  return ListLossPieces(scratch, stream, &plan->work);
}

}  // namespace

template <>
template <typename Id>
int TreeSoftmaxGpu::FindPaths(const TreeArrays& tree, const Id* targets, const float* weights, int64_t tokens,
                              int64_t dim, int64_t likely_pairs, Scratch* lasting, TreePaths* paths) {
  LARGEOUT_RETURN_IF_ERROR(PlanLoss(tree, targets, weights, tokens, dim, likely_pairs, call_.scratch, lasting,
                                    call_.stream, &loss_));
  *paths = {loss_.status, loss_.bad_position, 0, loss_.pairs, loss_.groups, loss_.probs};
  if (loss_.bad_position < 0) return 0;
  Id target;
  LARGEOUT_RETURN_IF_ERROR(
      CopyToHostCuda(targets + loss_.bad_position, sizeof(target), &target, call_.stream));
  paths->bad_target = static_cast<int64_t>(target);
  return 0;
}

#define LARGEOUT_INSTANTIATE(Id)                                                                           \
  template int TreeSoftmaxGpu::FindPaths<Id>(const TreeArrays&, const Id*, const float*, int64_t, int64_t, \
                                             int64_t, Scratch*, TreePaths*);
LARGEOUT_INSTANTIATE(int32_t)
LARGEOUT_INSTANTIATE(int64_t)

}  // namespace largeout
