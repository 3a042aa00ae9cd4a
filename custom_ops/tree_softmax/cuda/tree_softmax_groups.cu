// Cuts groups into the pieces that blocks and warps work on: running sums over the groups, then lists piece
// -> group.
#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_plan.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

// Groups are cut into runs, one of a block, of whole tiles of kThreads groups. Their number is bounded, so
// that a block may add up all the runs before its own.
int64_t RunTiles(int64_t groups) { return CeilDiv(CeilDiv(groups, kThreads), TreeTuning::kMostRuns); }

// The words that offsets are made of.
constexpr int kWords = sizeof(TreeOffsets) / sizeof(int64_t);
__device__ __forceinline__ int64_t* Words(TreeOffsets* x) { return reinterpret_cast<int64_t*>(x); }
__device__ __forceinline__ const int64_t* Words(const TreeOffsets* x) {
  return reinterpret_cast<const int64_t*>(x);
}
__device__ __forceinline__ void Add(const TreeOffsets& x, TreeOffsets* sum) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) Words(sum)[i] += Words(&x)[i];
}

// Of a group of n pairs, whose node has c children, one of `count`.
__host__ __device__ TreeOffsets SizesOf(int64_t n, int64_t c, int64_t count, int64_t dim, bool keep_partials) {
  TreeOffsets s{};
  s.probs = n * c;
  s.rows = c;
  if (IsWide(n, c)) {
    const int64_t splits = CeilDiv(n, SplitPairs(n, c, dim)), slices = CeilDiv(n, WideSlice(c));
    const int64_t tiles = CeilDiv(c, kTileColumns), ranges = CeilDiv(tiles, RangeTiles(n, c, count));
    s.wide_slices = slices;
    s.tiles = slices * tiles;
    s.loss_tiles = slices * ranges;
    s.terms = n * ranges;
    s.weight_tiles = CeilDiv(c, kTileRows) * splits * RowBlocks(n, dim);
    // A slice is in one chunk.
    s.partial_rows = splits > 1 || (keep_partials && slices > 1) ? splits * c : 0;
  } else {
    const int64_t slices = CeilDiv(n, kSlice);
    s.narrow_slices = slices;
    s.partial_rows = slices > 1 ? slices * c : 0;
  }
  s.sum_rows = s.partial_rows > 0 ? c : 0;
  return s;
}

// The groups, as the kernels of this file read them.
struct Groups {
  TreeArrays tree;
  const int32_t *node, *start;
  int64_t most, dim;
  bool keep_partials;

  // Of group g, and *children; zero from `count` on.
  __device__ __forceinline__ TreeOffsets Sizes(int64_t g, int64_t count, int64_t* children) const {
    *children = 0;
    if (g >= count) return {};
    const int64_t c = tree.node_start[node[g] + 1] - tree.node_start[node[g]], n = start[g + 1] - start[g];
    *children = c;
    return SizesOf(n, c, count, dim, keep_partials);
  }
};

// The sum of `sum` over the threads of the block up to this one. shared: [kWarps]; it is free again after the
// block's next barrier.
constexpr int kWarps = kThreads / 32;
__device__ __forceinline__ TreeOffsets SumUpTo(TreeOffsets sum, TreeOffsets* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int64_t other = __shfl_up_sync(0xffffffffu, Words(&sum)[i], step);
      if (lane >= step) Words(&sum)[i] += other;
    }
  }
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
#pragma unroll 1
  for (int w = 0; w < warp; ++w) Add(shared[w], &sum);
  return sum;
}

// The sums of the runs, and the most children of a node.
__global__ void __launch_bounds__(kThreads)
    SumRuns(Groups groups, int64_t run_tiles, TreeTotals* totals, TreeOffsets* runs) {
  __shared__ TreeOffsets shared[kWarps];
  __shared__ long long largest[kWarps];
  const int64_t count = CountOf(*totals, groups.most), first = blockIdx.x * run_tiles * kThreads;
  // Of a forest's roots, which may be on one level, none is the root.
  if (blockIdx.x == 0 && threadIdx.x == 0 && count > 0 && groups.node[0] == 0 &&
      (count == 1 || groups.tree.node_parent[groups.node[1]] == 0)) {
    totals->root_pairs = groups.start[1] - groups.start[0];
    totals->root_children = groups.tree.node_start[1] - groups.tree.node_start[0];
  }
  TreeOffsets sum{};
  long long most = 0;
  for (int64_t i = 0; i < run_tiles; ++i) {
    int64_t children;
    Add(groups.Sizes(first + i * kThreads + threadIdx.x, count, &children), &sum);
    most = max(most, static_cast<long long>(children));
  }
  most = WarpLargest(most);
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
  sum = SumUpTo(sum, shared);
  if (threadIdx.x != kThreads - 1) return;
  runs[blockIdx.x] = sum;
  for (int warp = 0; warp < kWarps; ++warp) most = max(most, largest[warp]);
  // One atomic of a block on the one address.
  if (most > 0) {
    atomicMax(reinterpret_cast<unsigned long long*>(&totals->max_children),
              static_cast<unsigned long long>(most));
  }
}

// offsets [most + 1], and all sums to totals. They are in shared memory first, so that neighbouring threads
// write neighbouring words.
__global__ void __launch_bounds__(kThreads, 4)
    WriteOffsets(Groups groups, int64_t run_tiles, const TreeOffsets* runs, TreeTotals* totals,
                 TreeOffsets* offsets) {
  __shared__ TreeOffsets shared[kWarps], before;  // `before` the tile
  __shared__ TreeOffsets staged[kThreads];
  const bool last = threadIdx.x == kThreads - 1;
  const int64_t count = CountOf(*totals, groups.most);
  TreeOffsets sum{};
  for (int64_t r = threadIdx.x; r < blockIdx.x; r += kThreads) Add(runs[r], &sum);
  sum = SumUpTo(sum, shared);
  if (last) before = sum;
  for (int64_t i = 0; i < run_tiles; ++i) {
    const int64_t first = (blockIdx.x * run_tiles + i) * kThreads, g = first + threadIdx.x;
    if (first > groups.most) return;
    int64_t children;
    const TreeOffsets own = groups.Sizes(g, count, &children);
    __syncthreads();  // all have used what is in shared memory
    sum = SumUpTo(own, shared);
    Add(before, &sum);
    TreeOffsets* mine = staged + threadIdx.x;
#pragma unroll
    for (int k = 0; k < kWords; ++k) Words(mine)[k] = Words(&sum)[k] - Words(&own)[k];
    if (g == groups.most) totals->sums = *mine;
    __syncthreads();
    if (last) before = sum;
    const int64_t words = min(int64_t{kThreads}, groups.most + 1 - first) * kWords;
    for (int64_t w = threadIdx.x; w < words; w += kThreads) Words(offsets + first)[w] = Words(staged)[w];
  }
}

// owner[i] = the group whose pieces contain piece i. `sums` is one member of the offsets: sums[g * kWords]
// pieces come before group g.
__global__ void ListPieces(const int64_t* sums, int64_t groups, int64_t pieces, int32_t* owner) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= pieces) return;
  owner[i] = static_cast<int32_t>(LastStart(groups, i, [&](int64_t g) { return sums[g * kWords]; }));
}

__global__ void ListNarrowSlices(TreeArrays tree, const int32_t* group_node, const int32_t* group_start,
                                 const TreeOffsets* offsets, int64_t groups, int64_t slices,
                                 NarrowSlice* list) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= slices) return;
  const int64_t group = LastStart(groups, i, [&](int64_t g) { return offsets[g].narrow_slices; });
  const TreeOffsets& at = offsets[group];
  const int node = group_node[group], begin = group_start[group], end = group_start[group + 1];
  const int64_t index = i - at.narrow_slices, parts = CeilDiv(end - begin, kSlice);
  NarrowSlice s;
  s.first = begin + static_cast<int>(index * kSlice);
  s.count = min(kSlice, end - s.first);
  s.row = tree.node_start[node];
  s.children = tree.node_start[node + 1] - s.row;
  s.prob = at.probs + index * kSlice * s.children;
  s.out = parts > 1 ? ~(at.partial_rows + index * s.children) : at.rows;
  list[i] = s;
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

// sums: one member of work.offsets (its address alone is formed here).
int MakeList(const TreeWork& work, const int64_t* sums, int64_t pieces, Scratch* scratch, GpuStream stream,
             const int32_t** list) {
  if (pieces == 0) return 0;
  if (pieces > 0x7fffffff) return static_cast<int>(cudaErrorInvalidValue);
  auto* owner = scratch->Take<int32_t>(pieces);
  if (owner == nullptr) return kNoMemory;
  *list = owner;
  return Launch(ListPieces, static_cast<unsigned>(CeilDiv(pieces, kThreads)), kThreads, 0, stream, sums,
                work.groups, pieces, owner);
}

}  // namespace

int FindChunkStarts(const TreeArrays& tree, const TreeWork& work, int64_t length, int64_t chunks,
                    ChunkStart* starts, GpuStream stream) {
  return Launch(ListChunkStarts, static_cast<unsigned>(CeilDiv(chunks + 1, kThreads)), kThreads, 0, stream, tree,
                work.group_node, work.offsets, work.groups, length, chunks, starts);
}

int CutTreeGroups(const TreeArrays& tree, const int32_t* group_node, const int32_t* group_start,
                  int64_t max_groups, TreeTotals* device_totals, int64_t dim, bool keep_partials,
                  Scratch* scratch, GpuStream stream, TreeWork* work, TreeTotals* totals) {
  const Groups groups{tree, group_node, group_start, max_groups, dim, keep_partials};
  const int64_t run_tiles = RunTiles(max_groups + 1);
  const unsigned run_count = static_cast<unsigned>(CeilDiv(max_groups + 1, run_tiles * kThreads));
  auto* runs = scratch->Take<TreeOffsets>(run_count);
  auto* offsets = scratch->Take<TreeOffsets>(max_groups + 1);
  if (runs == nullptr || offsets == nullptr) return kNoMemory;
  LARGEOUT_RETURN_IF_ERROR(
      Launch(SumRuns, run_count, kThreads, 0, stream, groups, run_tiles, device_totals, runs));
  LARGEOUT_RETURN_IF_ERROR(
      Launch(WriteOffsets, run_count, kThreads, 0, stream, groups, run_tiles, runs, device_totals, offsets));
  const int32_t* level_start;
  LARGEOUT_RETURN_IF_ERROR(
      CutTreeLevels(tree, group_node, group_start, max_groups, device_totals, scratch, stream, &level_start));
  LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(device_totals, sizeof(*totals), totals, stream));
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
  work->loss_tiles = sums.loss_tiles;
  work->terms = sums.terms;
  work->weight_tiles = sums.weight_tiles;
  work->partial_rows = sums.partial_rows;
  work->sum_rows = sums.sum_rows;
  const TreeOffsets root =
      SizesOf(totals->root_pairs, totals->root_children, totals->groups, dim, keep_partials);
  work->root = {totals->root_pairs, totals->root_children, root.probs,   root.tiles,
                root.loss_tiles,    root.weight_tiles,     root.sum_rows};
  work->max_children = totals->max_children;
  work->levels = totals->levels;
  work->narrow_levels = totals->narrow_levels;
  work->wide_levels = totals->wide_levels;
  return 0;
}

int ListLossPieces(Scratch* scratch, GpuStream stream, TreeWork* work) {
  LARGEOUT_RETURN_IF_ERROR(
      MakeList(*work, &work->offsets->wide_slices, work->wide_slices, scratch, stream, &work->wide_group));
  return MakeList(*work, &work->offsets->loss_tiles, work->loss_tiles, scratch, stream,
                  &work->loss_tile_group);
}

int ListGradPieces(const TreeArrays& tree, bool tiles, Scratch* scratch, GpuStream stream, TreeWork* work) {
  const auto list = [&](const int64_t* sums, int64_t pieces, const int32_t** out) {
    return MakeList(*work, sums, pieces, scratch, stream, out);
  };
  const TreeOffsets* sums = work->offsets;
  LARGEOUT_RETURN_IF_ERROR(list(&sums->wide_slices, work->wide_slices, &work->wide_group));
  if (tiles) LARGEOUT_RETURN_IF_ERROR(list(&sums->tiles, work->tiles, &work->tile_group));
  LARGEOUT_RETURN_IF_ERROR(list(&sums->weight_tiles, work->weight_tiles, &work->weight_group));
  LARGEOUT_RETURN_IF_ERROR(list(&sums->sum_rows, work->sum_rows, &work->sum_group));
  if (work->narrow_slices == 0) return 0;
  auto* narrow = scratch->Take<NarrowSlice>(work->narrow_slices);
  if (narrow == nullptr) return kNoMemory;
  work->narrow = narrow;
  return Launch(ListNarrowSlices, static_cast<unsigned>(CeilDiv(work->narrow_slices, kThreads)), kThreads, 0,
                stream, tree, work->group_node, work->group_start, work->offsets, work->groups,
                work->narrow_slices, narrow);
}

}  // namespace largeout
