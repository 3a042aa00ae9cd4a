// Wide nodes, backward: both gradients as tiled matrix products with the probabilities of a chunk of slices.
//
// Bounds, for n pairs of a node of c children: 2 n c dim flops for each gradient; bytes: 4 n c of
// probabilities, read once for each 128 elements of a row, by both; c dim elements of rows read for every 128
// pairs, or from the L2 cache where slices share them; n dim elements of hidden vectors read, and as many
// floats read and written; c dim elements of row gradients written. What ranges of children leave of d_hidden
// stays in the L2 cache.
#include "common/cuda/gemm/multiply.cuh"
#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {
namespace {

// (probability - 1 at the path's child) * scale, for pairs x children, beside hidden vectors of type H.
template <typename H>
struct GradOperand {
  using Element = float;
  static constexpr bool kConverts = true, kRounded = kRoundsFactors<H>;
  const float* base;  // the probability of pair 0, child 0
  const int32_t* pair_row;
  const float* scale;
  int64_t first_row;  // the table row of child 0
  int64_t stride;     // children of the node
  int rows, columns;  // pairs; children from child 0 on
  bool aligned;

  __device__ __forceinline__ const float* Line(int pair) const {
    return pair < rows ? base + pair * stride : nullptr;
  }
  __device__ __forceinline__ uint4 Convert(int pair, int child, uint4 x) const {
    if (pair >= rows) return x;
    const float s = scale[pair];
    const int target = static_cast<int>(pair_row[pair] - first_row) - child;
    const auto gradient = [&](uint32_t p, int i) {
      return child + i < columns ? __float_as_uint((__uint_as_float(p) - (target == i ? 1.f : 0.f)) * s) : 0u;
    };
    return {gradient(x.x, 0), gradient(x.y, 1), gradient(x.z, 2), gradient(x.w, 3)};
  }
};

__device__ __forceinline__ bool LinesAligned(const float* base, int64_t stride) {
  return stride % 4 == 0 && reinterpret_cast<uintptr_t>(base) % 16 == 0;
}

template <typename T, typename H>
constexpr int kHiddenBytes = kTilesBytes<FactorType<T, H>, true, false, GradOperand<H>, TableOperand<T, H>>;
template <typename T, typename H>
constexpr int kRowBytes = kTilesBytes<FactorType<T, H>, false, false, GradOperand<H>, RowOperand<H>>;

// The tiles of d_hidden of a launch, and the ranges of children that each is cut into.
struct HiddenTiles {
  int64_t parts, first_slice, count, ranges;

  template <typename T, typename H>
  static __device__ __forceinline__ HiddenTiles Of(const TreeBatch<T, H>& batch, const int32_t* level_start,
                                                   int64_t level, const ProbChunk& chunk) {
    int64_t begin = batch.offsets[level_start[level]].wide_slices;
    int64_t end = batch.offsets[level_start[level + 1]].wide_slices;
    if (chunk.starts != nullptr)
      begin = max(begin, chunk.starts[0].slices), end = min(end, chunk.starts[1].slices);
    const int64_t parts = CeilDiv(batch.table.dim, kTileColumns),
                  count = max(int64_t{0}, end - begin) * parts;
    return {parts, begin, count, count == 0 ? 1 : HiddenRanges(count)};
  }
};

// One of them.
struct HiddenTile {
  TreeSlice slice;
  int64_t column, each;  // of the rows; children of a range

  template <typename T, typename H>
  static __device__ __forceinline__ HiddenTile Of(const TreeBatch<T, H>& batch, const int32_t* wide_group,
                                                  const HiddenTiles& tiles, int64_t tile) {
    const int64_t index = tile / tiles.parts, slice = tiles.first_slice + index;
    const int group = wide_group[slice];
    HiddenTile t;
    t.slice = SliceOf(batch, group, slice - batch.offsets[group].wide_slices, 0);
    t.column = (tile - index * tiles.parts) * kTileColumns;
    t.each = RangeChildren(t.slice.children, tiles.ranges);
    return t;
  }
};

// The sum over the children of `range`, to d_hidden where it is the only one, else to `sums`.
template <typename T, typename H, class Shape>
__device__ __forceinline__ void HiddenPiece(const TreeBatch<T, H>& batch, const HiddenTile& tile,
                                            int64_t range, bool add, const ProbChunk& chunk,
                                            const TreeGradOutputs<T>& out, float* sums, char* shared,
                                            bool copied, bool aligned) {
  const TreeSlice& s = tile.slice;
  const int64_t dim = batch.table.dim, column = tile.column, begin = range * tile.each;
  const float* probs = chunk.data + (s.prob - chunk.begin);
  const GradOperand<H> a{
      probs,      batch.pair_row + s.first,       out.pair_scale + s.first, s.row, s.children, s.count,
      s.children, LinesAligned(probs, s.children)};
  const TableOperand<T, H> b{batch.table.rows + s.row * dim + column, dim,   nullptr, s.children,
                             static_cast<int>(dim - column),          copied};
  float acc[Shape::kTM][Shape::kTN] = {};
  MultiplyTile<Shape, true, false>(a, b, static_cast<int>(begin),
                                   static_cast<int>(min(begin + tile.each, int64_t{s.children})), batch.tf32,
                                   shared, acc, NothingEachK());
  if (s.children > tile.each) {
    StoreTile<Shape>(
        acc, s.count, kTileColumns, true, [&](int t) { return sums + t * kTileColumns; },
        [](int) -> const float* { return nullptr; });
  } else {
    const auto line = [&](int t) { return out.d_hidden + batch.pair_token[s.first + t] * dim + column; };
    StoreTile<Shape>(acc, s.count, dim - column, aligned, line,
                     [&](int t) -> const float* { return add ? line(t) : nullptr; });
  }
}

// Pieces of one range are neighbours: they read the same rows.
template <typename T, typename H>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    WideHidden(TreeBatch<T, H> batch, const int32_t* wide_group, const int32_t* level_start, int64_t level,
               ProbChunk chunk, TreeGradOutputs<T> out, bool copied, bool aligned) {
  char* shared = DynamicShared<char>();
  const HiddenTiles tiles = HiddenTiles::Of(batch, level_start, level, chunk);
  for (int64_t piece = blockIdx.x; piece < tiles.count * tiles.ranges; piece += gridDim.x) {
    const int64_t range = piece / tiles.count;
    const HiddenTile tile = HiddenTile::Of(batch, wide_group, tiles, piece - range * tiles.count);
    if (range * tile.each >= tile.slice.children) continue;
    float* sums = out.hidden_sums + piece * kTileRows * kTileColumns;
    if (tile.slice.count > kSmallM) {
      HiddenPiece<T, H, typename Tiles<FactorType<T, H>>::LargeM>(batch, tile, range, level > 0, chunk, out,
                                                                  sums, shared, copied, aligned);
    } else {
      HiddenPiece<T, H, typename Tiles<FactorType<T, H>>::SmallM>(batch, tile, range, level > 0, chunk, out,
                                                                  sums, shared, copied, aligned);
    }
  }
}

constexpr int kAddWarps = 8;

// The sums of a tile's ranges, in their order: a warp a row.
template <typename T, typename H>
__global__ void __launch_bounds__(kAddWarps * 32)
    AddHiddenRanges(TreeBatch<T, H> batch, const int32_t* wide_group, const int32_t* level_start,
                    int64_t level, ProbChunk chunk, TreeGradOutputs<T> out) {
  const HiddenTiles tiles = HiddenTiles::Of(batch, level_start, level, chunk);
  if (tiles.ranges == 1) return;
  const int64_t dim = batch.table.dim, warps = gridDim.x * int64_t{kAddWarps};
  for (int64_t unit = blockIdx.x * int64_t{kAddWarps} + threadIdx.x / 32; unit < tiles.count * kTileRows;
       unit += warps) {
    const int64_t index = unit / kTileRows, t = unit % kTileRows;
    const HiddenTile tile = HiddenTile::Of(batch, wide_group, tiles, index);
    const TreeSlice& s = tile.slice;
    if (t >= s.count || s.children <= tile.each) continue;
    const int64_t ranges = CeilDiv(s.children, tile.each);
    float* to = out.d_hidden + batch.pair_token[s.first + t] * dim + tile.column;
    for (int64_t k = threadIdx.x % 32; k < min(int64_t{kTileColumns}, dim - tile.column); k += 32) {
      const float* from = out.hidden_sums + (index * kTileRows + t) * kTileColumns + k;
      float sum = level > 0 ? to[k] : 0.f;
#pragma unroll 8
      for (int64_t r = 0; r < ranges; ++r) sum += from[r * tiles.count * kTileRows * kTileColumns];
      to[k] = sum;
    }
  }
}

// Some pairs of a wide node, 128 of its rows, 128 elements of them.
struct RowPiece {
  int group;
  int64_t first, count;     // pairs
  int64_t child, children;  // the first of the tile; all
  int64_t row, prob;        // the node's first row; where the first pair's probabilities are
  int64_t out_row;          // of `child`
  bool partial, add;
};

template <typename T, typename H, class Shape>
__device__ __forceinline__ void RowTile(const TreeBatch<T, H>& batch, const RowPiece& piece, int64_t column,
                                        const ProbChunk& chunk, const TreeGradOutputs<T>& out, char* shared,
                                        bool copied, bool aligned) {
  const int64_t dim = batch.table.dim, left = piece.children - piece.child;
  const float* probs = chunk.data + (piece.prob - chunk.begin) + piece.child;
  const GradOperand<H> a{probs,
                         batch.pair_row + piece.first,
                         out.pair_scale + piece.first,
                         piece.row + piece.child,
                         piece.children,
                         static_cast<int>(piece.count),
                         static_cast<int>(left),
                         LinesAligned(probs, piece.children)};
  const RowOperand<H> b{batch.hidden + column,          dim,
                        batch.pair_token + piece.first, static_cast<int>(piece.count),
                        static_cast<int>(dim - column), copied};
  float acc[Shape::kTM][Shape::kTN] = {};
  float bias = 0.f;
  const bool wants_bias = column == 0 && out.bias_grads != nullptr && threadIdx.x < Shape::kM;
  MultiplyTile<Shape, false, false>(a, b, 0, static_cast<int>(piece.count), batch.tf32, shared, acc,
                                    [&](const auto& grad) {
                                      if (wants_bias) {
                                        for (int k = 0; k < kTileK; ++k) bias += grad(threadIdx.x, k);
                                      }
                                    });
  if (piece.partial) {
    float* rows = out.partials + piece.out_row * dim + column;
    StoreTile<Shape>(
        acc, left, dim - column, aligned, [&](int r) { return rows + r * dim; },
        [&](int r) -> const float* { return piece.add ? rows + r * dim : nullptr; });
  } else {
    T* rows = out.row_grads + piece.out_row * dim + column;
    StoreTile<Shape>(
        acc, left, dim - column, aligned, [&](int r) { return rows + r * dim; },
        [&](int r) -> const float* {
          // Rows of bfloat16 are not added to: they are in parts then.
          if constexpr (std::is_same<T, float>::value) return piece.add ? rows + r * dim : nullptr;
          return nullptr;
        });
  }
  if (wants_bias && threadIdx.x < left) {
    float* to = (piece.partial ? out.bias_partials : out.bias_grads) + piece.out_row + threadIdx.x;
    *to = piece.add ? *to + bias : bias;
  }
}

template <typename T, typename H>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    WideRows(TreeBatch<T, H> batch, const int32_t* weight_group, int64_t skipped, ProbChunk chunk,
             TreeGradOutputs<T> out, bool copied, bool aligned) {
  char* shared = DynamicShared<char>();
  const int64_t tile = blockIdx.x + skipped;
  RowPiece piece;
  piece.group = weight_group[tile];
  const TreeOffsets& offsets = batch.offsets[piece.group];
  const int node = batch.group_node[piece.group];
  piece.row = batch.tree.node_start[node];
  piece.children = batch.tree.node_start[node + 1] - piece.row;
  const int64_t start = batch.group_start[piece.group], pairs = batch.group_start[piece.group + 1] - start;
  const int64_t each = SplitPairs(pairs, piece.children, batch.table.dim);
  const int64_t high = CeilDiv(piece.children, kTileRows), local = tile - offsets.weight_tiles;
  const int64_t blocks = RowBlocks(pairs, batch.table.dim), split = local / high / blocks;
  piece.child = local % high * kTileRows;
  // The slices of this node that are in the chunk, within this split.
  const int64_t slice_pairs = WideSlice(piece.children), slice_probs = slice_pairs * piece.children;
  const int64_t chunk_first =
      max(int64_t{0}, CeilDiv(max(int64_t{0}, chunk.begin - offsets.probs), slice_probs)) * slice_pairs;
  const int64_t chunk_last =
      chunk.end <= offsets.probs ? 0 : CeilDiv(chunk.end - offsets.probs, slice_probs) * slice_pairs;
  const int64_t first = max(split * each, chunk_first),
                last = min(min((split + 1) * each, pairs), chunk_last);
  if (first >= last) return;
  piece.first = start + first;
  piece.count = last - first;
  piece.prob = offsets.probs + first * piece.children;
  piece.add = first > split * each;
  piece.partial = batch.offsets[piece.group + 1].partial_rows > offsets.partial_rows;
  piece.out_row =
      (piece.partial ? offsets.partial_rows + split * piece.children : offsets.rows) + piece.child;
  for (int64_t column = local / high % blocks * kTileColumns; column == 0 || column < batch.table.dim;
       column += blocks * kTileColumns) {
    if (piece.children - piece.child > kSmallM) {
      RowTile<T, H, typename Tiles<FactorType<T, H>>::LargeM>(batch, piece, column, chunk, out, shared,
                                                              copied, aligned);
    } else {
      RowTile<T, H, typename Tiles<FactorType<T, H>>::SmallM>(batch, piece, column, chunk, out, shared,
                                                              copied, aligned);
    }
  }
}

}  // namespace

template <typename T, typename H>
int WideHiddenGrad(const TreeBatch<T, H>& batch, const TreeWork& work, int64_t level, const ProbChunk& chunk,
                   const TreeGradOutputs<T>& out, GpuStream stream) {
  if (batch.table.dim == 0) return 0;  // d_hidden has no elements
  const int64_t dim = batch.table.dim, tiles = work.wide_slices * CeilDiv(dim, kTileColumns);
  const int64_t pieces = MostHiddenPieces(tiles, work.max_children);
  LARGEOUT_RETURN_IF_ERROR(Launch(WideHidden<T, H>, GridStrideBlocks(std::max(tiles, pieces), 132 * 24),
                                  kTileThreads, kHiddenBytes<T, H>, stream, batch, work.wide_group,
                                  work.level_start, level, chunk, out, RowsCopied(dim, batch.table.rows),
                                  RowsAligned(dim, out.d_hidden, nullptr)));
  if (pieces == 0) return 0;
  return Launch(AddHiddenRanges<T, H>,
                GridStrideBlocks(CeilDiv(tiles * kTileRows, kAddWarps), TreeTuning::kHiddenPieces),
                kAddWarps * 32, 0, stream, batch, work.wide_group, work.level_start, level, chunk, out);
}

template <typename T, typename H>
int WideRowGrad(const TreeBatch<T, H>& batch, const TreeWork& work, const ProbChunk& chunk,
                const TreeGradOutputs<T>& out, GpuStream stream) {
  const int64_t dim = batch.table.dim, tiles = work.weight_tiles - work.skipped.weight_tiles;
  if (tiles == 0) return 0;
  return Launch(WideRows<T, H>, static_cast<unsigned>(tiles), kTileThreads, kRowBytes<T, H>, stream, batch,
                work.weight_group, work.skipped.weight_tiles, chunk, out, RowsCopied(dim, batch.hidden),
                RowsAligned(dim, out.row_grads, out.partials));
}

#define LARGEOUT_INSTANTIATE(T, H)                                                                      \
  template int WideHiddenGrad<T, H>(const TreeBatch<T, H>&, const TreeWork&, int64_t, const ProbChunk&, \
                                    const TreeGradOutputs<T>&, GpuStream);                              \
  template int WideRowGrad<T, H>(const TreeBatch<T, H>&, const TreeWork&, const ProbChunk&,             \
                                 const TreeGradOutputs<T>&, GpuStream);
LARGEOUT_INSTANTIATE(float, float)
LARGEOUT_INSTANTIATE(float, bfloat16)
LARGEOUT_INSTANTIATE(bfloat16, float)
LARGEOUT_INSTANTIATE(bfloat16, bfloat16)

}  // namespace largeout
