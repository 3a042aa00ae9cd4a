// Pairs of a batch on the device: every token's path (counted, then written), sorted by node, cut into
// groups.
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

// Read back by the host after counting.
struct PairTotals {
  unsigned long long pairs;
  long long bad;  // the smallest 2 * position (+ 1: the tree's fault), or LLONG_MAX
};

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

__global__ void ClearTotals(PairTotals* totals) {
  totals->pairs = 0;
  totals->bad = 0x7fffffffffffffffll;
}

template <typename Id>
__global__ void CountPaths(TreeArrays tree, const Id* targets, const float* weights, int64_t tokens,
                           int32_t* lengths, PairTotals* totals) {
  const int64_t token = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  int length = 0;
  if (token < tokens && (weights == nullptr || weights[token] != 0.f)) {
    const int64_t target = static_cast<int64_t>(targets[token]);
    if (target < 0 || target >= tree.classes) {
      atomicMin(&totals->bad, static_cast<long long>(2 * token));
    } else {
      length = WalkPath(tree, target, [](int, int) {});
      if (length < 0) {
        atomicMin(&totals->bad, static_cast<long long>(2 * token + 1));
        length = 0;
      }
    }
  }
  if (token <= tokens) lengths[token] = length;  // [tokens]: 0, so that the scan ends in the total
  const long long sum = WarpSum(static_cast<long long>(length));
  if ((threadIdx.x & 31) == 0 && sum > 0) atomicAdd(&totals->pairs, static_cast<unsigned long long>(sum));
}

template <typename Id>
__global__ void WritePaths(TreeArrays tree, const Id* targets, const int32_t* token_start, int64_t tokens,
                           int32_t* slot_node, int32_t* slot_row, int32_t* slot_token, int32_t* slots) {
  const int64_t token = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (token >= tokens || token_start[token] == token_start[token + 1]) return;
  int slot = token_start[token];
  WalkPath(tree, static_cast<int64_t>(targets[token]), [&](int node, int row) {
    slot_node[slot] = node;
    slot_row[slot] = row;
    slot_token[slot] = static_cast<int32_t>(token);
    slots[slot] = slot;
    ++slot;
  });
}

// After the sort: fetches token and row of every pair, and flags the first pair of every node.
__global__ void GatherPairs(const int32_t* slot_row, const int32_t* slot_token, const int32_t* pair_slot,
                            const int32_t* pair_node, int64_t pairs, int32_t* pair_token, int32_t* pair_row,
                            int32_t* first) {
  const int64_t p = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (p >= pairs) return;
  const int slot = pair_slot[p];
  pair_token[p] = slot_token[slot];
  pair_row[p] = slot_row[slot];
  first[p] = p == 0 || pair_node[p] != pair_node[p - 1];
}

// pair_group comes in as the running count of flags, from 1; it becomes the group, from 0.
__global__ void WriteGroups(const int32_t* pair_node, int64_t pairs, int32_t* pair_group, int32_t* group_node,
                            int32_t* group_start, TreeTotals* totals) {
  const int64_t p = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
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

}  // namespace

#define LARGEOUT_SCRATCH(type, name, count)                                                         \
  type* name = static_cast<type*>(scratch->Allocate(static_cast<int64_t>(sizeof(type)) * (count))); \
  if (name == nullptr) return static_cast<int>(cudaErrorMemoryAllocation)

template <typename Id>
int PlanTreeLossCuda(const TreeArrays& tree, const Id* targets, const float* weights, int64_t tokens,
                     int64_t dim, Scratch* scratch, GpuStream stream, TreeLossPlan* plan) {
  *plan = TreeLossPlan();
  if (tokens == 0) return 0;
  LARGEOUT_SCRATCH(PairTotals, pair_totals, 1);
  LARGEOUT_SCRATCH(int32_t, lengths, tokens + 1);
  LARGEOUT_SCRATCH(int32_t, token_start, tokens + 1);
  LARGEOUT_RETURN_IF_ERROR(Launch(ClearTotals, 1, 1, 0, stream, pair_totals));
  LARGEOUT_RETURN_IF_ERROR(Launch(CountPaths<Id>, Blocks(tokens + 1), kThreads, 0, stream, tree, targets,
                                  weights, tokens, lengths, pair_totals));
  size_t temp_bytes = 0;
  LARGEOUT_CUDA_RETURN(
      cub::DeviceScan::ExclusiveSum(nullptr, temp_bytes, lengths, token_start, tokens + 1, stream));
  LARGEOUT_SCRATCH(char, scan_temp, temp_bytes);
  LARGEOUT_CUDA_RETURN(
      cub::DeviceScan::ExclusiveSum(scan_temp, temp_bytes, lengths, token_start, tokens + 1, stream));
  PairTotals counted;
  LARGEOUT_CUDA_RETURN(
      cudaMemcpyAsync(&counted, pair_totals, sizeof(counted), cudaMemcpyDeviceToHost, stream));
  LARGEOUT_CUDA_RETURN(cudaStreamSynchronize(stream));
  if (counted.bad != 0x7fffffffffffffffll) {
    plan->status = counted.bad % 2 == 0 ? TreeStatus::kBadTarget : TreeStatus::kBadTree;
    plan->bad_position = counted.bad / 2;
    return 0;
  }
  if (counted.pairs >= 0x7fffffffull) {
    plan->status = TreeStatus::kTooManyPairs;
    return 0;
  }
  const int64_t pairs = static_cast<int64_t>(counted.pairs);
  plan->pairs = pairs;
  plan->token_start = token_start;
  if (pairs == 0) return 0;

  LARGEOUT_SCRATCH(int32_t, slot_node, pairs);
  LARGEOUT_SCRATCH(int32_t, slot_row, pairs);
  LARGEOUT_SCRATCH(int32_t, slot_token, pairs);
  LARGEOUT_SCRATCH(int32_t, slots, pairs);
  LARGEOUT_SCRATCH(int32_t, pair_node, pairs);
  LARGEOUT_SCRATCH(int32_t, pair_slot, pairs);
  LARGEOUT_SCRATCH(int32_t, pair_token, pairs);
  LARGEOUT_SCRATCH(int32_t, pair_row, pairs);
  LARGEOUT_SCRATCH(int32_t, pair_group, pairs);
  LARGEOUT_SCRATCH(int32_t, group_node, pairs);
  LARGEOUT_SCRATCH(int32_t, group_start, pairs + 1);
  LARGEOUT_SCRATCH(TreeTotals, totals, 1);
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(totals, 0, sizeof(TreeTotals), stream));
  LARGEOUT_RETURN_IF_ERROR(Launch(WritePaths<Id>, Blocks(tokens), kThreads, 0, stream, tree, targets,
                                  token_start, tokens, slot_node, slot_row, slot_token, slots));
  // Slots are in the order of the tokens and the sort is stable: within a node, pairs are in the order of the
  // tokens.
  const int bits = BitsOf(tree.nodes);
  LARGEOUT_CUDA_RETURN(cub::DeviceRadixSort::SortPairs(nullptr, temp_bytes, slot_node, pair_node, slots,
                                                       pair_slot, static_cast<int>(pairs), 0, bits, stream));
  LARGEOUT_SCRATCH(char, sort_temp, temp_bytes);
  LARGEOUT_CUDA_RETURN(cub::DeviceRadixSort::SortPairs(sort_temp, temp_bytes, slot_node, pair_node, slots,
                                                       pair_slot, static_cast<int>(pairs), 0, bits, stream));
  int32_t* first = slot_node;  // the keys are not needed any more
  LARGEOUT_RETURN_IF_ERROR(Launch(GatherPairs, Blocks(pairs), kThreads, 0, stream, slot_row, slot_token,
                                  pair_slot, pair_node, pairs, pair_token, pair_row, first));
  LARGEOUT_CUDA_RETURN(cub::DeviceScan::InclusiveSum(nullptr, temp_bytes, first, pair_group, pairs, stream));
  LARGEOUT_SCRATCH(char, flag_temp, temp_bytes);
  LARGEOUT_CUDA_RETURN(
      cub::DeviceScan::InclusiveSum(flag_temp, temp_bytes, first, pair_group, pairs, stream));
  LARGEOUT_RETURN_IF_ERROR(Launch(WriteGroups, Blocks(pairs), kThreads, 0, stream, pair_node, pairs,
                                  pair_group, group_node, group_start, totals));
  TreeTotals read;
  plan->work.pairs = pairs;
  const int error = CutTreeGroups(tree, group_node, group_start, pairs, totals, dim, false, false, scratch,
                                  stream, &plan->work, &read);
  if (error != 0) return error;
  plan->groups = plan->work.groups;
  plan->probs = plan->work.probs;
  plan->pair_token = pair_token;
  plan->pair_row = pair_row;
  plan->pair_slot = pair_slot;
  plan->pair_group = pair_group;
  return 0;
}

template int PlanTreeLossCuda<int32_t>(const TreeArrays&, const int32_t*, const float*, int64_t, int64_t,
                                       Scratch*, GpuStream, TreeLossPlan*);
template int PlanTreeLossCuda<int64_t>(const TreeArrays&, const int64_t*, const float*, int64_t, int64_t,
                                       Scratch*, GpuStream, TreeLossPlan*);

}  // namespace largeout
