// Cuts groups into the pieces that blocks and warps work on: running sums over the groups, then lists piece
// -> group.
#include <cub/device/device_scan.cuh>

#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

struct AddOffsets {
  __host__ __device__ TreeOffsets operator()(const TreeOffsets& a, const TreeOffsets& b) const {
    return {a.probs + b.probs,
            a.rows + b.rows,
            a.narrow_slices + b.narrow_slices,
            a.wide_slices + b.wide_slices,
            a.tiles + b.tiles,
            a.terms + b.terms,
            a.weight_tiles + b.weight_tiles,
            a.partial_rows + b.partial_rows,
            a.sum_rows + b.sum_rows};
  }
};

// Sizes of group g, zero from *groups on.
__global__ void CountPieces(TreeArrays tree, const int32_t* group_node, const int32_t* group_start,
                            int64_t max_groups, int64_t dim, bool keep_partials, bool gradient,
                            TreeTotals* totals, TreeOffsets* sizes) {
  const int64_t g = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  TreeOffsets s = {};
  long long children = 0;
  if (g < max_groups && g < totals->groups && totals->bad == 0) {
    const int node = group_node[g];
    const int64_t c = tree.node_start[node + 1] - tree.node_start[node];
    const int64_t n = group_start[g + 1] - group_start[g];
    s.probs = n * c;
    s.rows = c;
    if (IsWide(n, c)) {
      const int64_t splits = CeilDiv(n, SplitPairs(n, c, dim)), slices = CeilDiv(n, WideSlice(c));
      const int64_t ranges = CeilDiv(CeilDiv(c, kTileColumns), gradient ? 1 : RangeTiles(n, c));
      s.wide_slices = slices;
      s.tiles = slices * ranges;
      s.terms = gradient ? 0 : n * ranges;
      s.weight_tiles = CeilDiv(c, kTileRows) * splits;
      // A slice is in one chunk.
      s.partial_rows = splits > 1 || (keep_partials && slices > 1) ? splits * c : 0;
    } else {
      const int64_t slices = CeilDiv(n, kSlice);
      s.narrow_slices = slices;
      s.partial_rows = slices > 1 ? slices * c : 0;
    }
    s.sum_rows = s.partial_rows > 0 ? c : 0;
    children = c;
  }
  if (g <= max_groups) sizes[g] = s;
  // The largest of a warp, then of the block: one atomic of a block on the one address.
  __shared__ long long largest[kThreads / 32];
  children = WarpLargest(children);
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = children;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) children = max(children, largest[warp]);
  if (children > 0) {
    atomicMax(reinterpret_cast<unsigned long long*>(&totals->max_children),
              static_cast<unsigned long long>(children));
  }
}

__global__ void ReadSums(const TreeOffsets* offsets, int64_t max_groups, TreeTotals* totals) {
  totals->sums = offsets[max_groups];
}

// owner[i] = the group whose pieces contain piece i. `sums` is one member of the offsets: sums[g * kStride]
// pieces come before group g.
constexpr int64_t kStride = sizeof(TreeOffsets) / sizeof(int64_t);

__global__ void ListPieces(const int64_t* sums, int64_t groups, int64_t pieces, int32_t* owner) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= pieces) return;
  owner[i] = static_cast<int32_t>(LastStart(groups, i, [&](int64_t g) { return sums[g * kStride]; }));
}

// One thread a chunk, and one for the end of the last.
__global__ void ListChunkStarts(TreeArrays tree, const int32_t* group_node, const TreeOffsets* offsets,
                                int64_t groups, int64_t length, int64_t chunks, ChunkStart* starts) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i > chunks) return;
  const int64_t prob = i * length;
  const int64_t group = LastStart(groups, prob, [&](int64_t g) { return offsets[g].probs; });
  const TreeOffsets &at = offsets[group], &next = offsets[group + 1];
  const int node = group_node[group];
  const int64_t children = tree.node_start[node + 1] - tree.node_start[node];
  // A slice belongs to the chunk in which it begins.
  const int64_t before =
      min(CeilDiv(prob - at.probs, WideSlice(children) * children), next.wide_slices - at.wide_slices);
  starts[i] = {at.wide_slices + before, at.tiles + before * CeilDiv(children, kTileColumns)};
}

int MakeList(const int64_t* sums, int64_t groups, int64_t pieces, Scratch* scratch, GpuStream stream,
             const int32_t** list) {
  if (pieces == 0) return 0;
  if (pieces > 0x7fffffff) return static_cast<int>(cudaErrorInvalidValue);
  int32_t* owner = static_cast<int32_t*>(scratch->Allocate(pieces * sizeof(int32_t)));
  if (owner == nullptr) return static_cast<int>(cudaErrorMemoryAllocation);
  LARGEOUT_RETURN_IF_ERROR(Launch(ListPieces, static_cast<unsigned>(CeilDiv(pieces, kThreads)), kThreads, 0,
                                  stream, sums, groups, pieces, owner));
  *list = owner;
  return 0;
}

// CheckTreeSaved for the pairs and groups; parents are checked by FindParents.
__global__ void CheckSaved(TreeArrays tree, TreeSaved saved, TreeTotals* totals) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i == 0) {
    totals->groups = saved.groups;
    if (saved.group_start[0] != 0 || saved.group_start[saved.groups] != saved.pairs) StoreRelaxed(&totals->bad, int64_t{1});
  }
  if (i >= saved.groups) return;
  const int64_t node = saved.group_node[i], begin = saved.group_start[i], end = saved.group_start[i + 1];
  bool good = node >= 0 && node < tree.nodes && (i == 0 || saved.group_node[i - 1] < node) && begin >= 0 &&
              begin < end && end <= saved.pairs;
  if (good) {
    const int64_t row = tree.node_start[node], next = tree.node_start[node + 1];
    good = row >= 0 && row < next && next <= tree.rows;
    if (good && i > 0 && saved.group_node[i - 1] >= 0) {  // rows ascend, from group to group
      good = tree.node_start[saved.group_node[i - 1] + 1] <= row;
    }
  }
  if (!good) StoreRelaxed(&totals->bad, int64_t{1});
}

__global__ void CheckSavedPairs(TreeArrays tree, TreeSaved saved, int64_t tokens, TreeTotals* totals) {
  const int64_t p = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (p >= saved.pairs || LoadRelaxed(&totals->bad) != 0) return;
  const int64_t group = LastStart(saved.groups, p, [&](int64_t g) { return saved.group_start[g]; });
  const int64_t node = saved.group_node[group], row = saved.pair_row[p], token = saved.pair_token[p];
  // Tokens of a node increase: no token is twice in it, so no two warps add to one element of d_hidden.
  const bool good = token >= 0 && token < tokens && row >= tree.node_start[node] &&
                    row < tree.node_start[node + 1] &&
                    (p == saved.group_start[group] || saved.pair_token[p - 1] < token);
  if (!good) StoreRelaxed(&totals->bad, int64_t{1});
}

}  // namespace

int FindChunkStarts(const TreeArrays& tree, const TreeWork& work, int64_t length, int64_t chunks,
                    ChunkStart* starts, GpuStream stream) {
  return Launch(ListChunkStarts, static_cast<unsigned>(CeilDiv(chunks + 1, kThreads)), kThreads, 0, stream, tree,
                work.group_node, work.offsets, work.groups, length, chunks, starts);
}

int CutTreeGroups(const TreeArrays& tree, const int32_t* group_node, const int32_t* group_start,
                  int64_t max_groups, TreeTotals* device_totals, int64_t dim, bool keep_partials,
                  bool with_levels, Scratch* scratch, GpuStream stream, TreeWork* work,
                  TreeTotals* totals) {
  const int64_t n = max_groups + 1;
  const unsigned blocks = static_cast<unsigned>(CeilDiv(n, kThreads));
  size_t temp_bytes = 0;
  TreeOffsets* none = nullptr;
  LARGEOUT_CUDA_RETURN(cub::DeviceScan::ExclusiveScan(nullptr, temp_bytes, none, none, AddOffsets(),
                                                      TreeOffsets{}, n, stream));
  auto* sizes = static_cast<TreeOffsets*>(scratch->Allocate(n * sizeof(TreeOffsets)));
  auto* offsets = static_cast<TreeOffsets*>(scratch->Allocate(n * sizeof(TreeOffsets)));
  void* temp = scratch->Allocate(static_cast<int64_t>(temp_bytes));
  if (sizes == nullptr || offsets == nullptr || temp == nullptr) {
    return static_cast<int>(cudaErrorMemoryAllocation);
  }
  LARGEOUT_RETURN_IF_ERROR(Launch(CountPieces, blocks, kThreads, 0, stream, tree, group_node, group_start,
                                  max_groups, dim, keep_partials, with_levels, device_totals, sizes));
  LARGEOUT_CUDA_RETURN(cub::DeviceScan::ExclusiveScan(temp, temp_bytes, sizes, offsets, AddOffsets(),
                                                      TreeOffsets{}, n, stream));
  LARGEOUT_RETURN_IF_ERROR(Launch(ReadSums, 1, 1, 0, stream, offsets, max_groups, device_totals));
  const int32_t* level_start = nullptr;
  if (with_levels) {
    LARGEOUT_RETURN_IF_ERROR(CutTreeLevels(tree, group_node, group_start, max_groups, device_totals, scratch, stream,
                                           &level_start));
  }
  LARGEOUT_CUDA_RETURN(
      cudaMemcpyAsync(totals, device_totals, sizeof(*totals), cudaMemcpyDeviceToHost, stream));
  LARGEOUT_CUDA_RETURN(cudaStreamSynchronize(stream));
  if (totals->bad != 0) return 0;

  const TreeOffsets& sums = totals->sums;
  work->groups = totals->groups;
  work->group_node = group_node;
  work->group_start = group_start;
  work->offsets = offsets;
  work->level_start = level_start;
  work->rows = sums.rows;
  work->probs = sums.probs;
  work->narrow_slices = sums.narrow_slices;
  work->wide_slices = sums.wide_slices;
  work->tiles = sums.tiles;
  work->terms = sums.terms;
  work->weight_tiles = sums.weight_tiles;
  work->partial_rows = sums.partial_rows;
  work->sum_rows = sums.sum_rows;
  work->max_children = totals->max_children;
  work->levels = totals->levels;
  work->narrow_levels = totals->narrow_levels;
  work->wide_levels = totals->wide_levels;
  const auto make_list = [&](const int64_t* member, int64_t pieces, const int32_t** list) {
    return MakeList(member, work->groups, pieces, scratch, stream, list);
  };
  int error = make_list(&offsets->wide_slices, sums.wide_slices, &work->wide_group);
  if (error == 0) error = make_list(&offsets->tiles, sums.tiles, &work->tile_group);
  if (error == 0 && with_levels)
    error = make_list(&offsets->narrow_slices, sums.narrow_slices, &work->narrow_group);
  if (error == 0 && with_levels)
    error = make_list(&offsets->weight_tiles, sums.weight_tiles, &work->weight_group);
  if (error == 0 && with_levels) error = make_list(&offsets->sum_rows, sums.sum_rows, &work->sum_group);
  return error;
}

int PlanTreeGradCuda(const TreeArrays& tree, const TreeSaved& saved, int64_t tokens, int64_t dim,
                     bool round_rows, Scratch* scratch, GpuStream stream, TreeGradPlan* plan) {
  *plan = TreeGradPlan();
  plan->work.pairs = saved.pairs;
  if (saved.pairs == 0 || saved.groups == 0) {
    plan->ok = saved.pairs == saved.groups;
    return 0;
  }
  auto* device_totals = static_cast<TreeTotals*>(scratch->Allocate(sizeof(TreeTotals)));
  if (device_totals == nullptr) return static_cast<int>(cudaErrorMemoryAllocation);
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(device_totals, 0, sizeof(TreeTotals), stream));
  LARGEOUT_RETURN_IF_ERROR(Launch(CheckSaved, static_cast<unsigned>(CeilDiv(saved.groups, kThreads)),
                                  kThreads, 0, stream, tree, saved, device_totals));
  LARGEOUT_RETURN_IF_ERROR(Launch(CheckSavedPairs, static_cast<unsigned>(CeilDiv(saved.pairs, kThreads)),
                                  kThreads, 0, stream, tree, saved, tokens, device_totals));
  TreeTotals totals;
  const int error =
      CutTreeGroups(tree, saved.group_node, saved.group_start, saved.groups, device_totals, dim,
                    round_rows && saved.probs == nullptr, true, scratch, stream, &plan->work, &totals);
  plan->ok = totals.bad == 0;
  return error;
}

}  // namespace largeout
