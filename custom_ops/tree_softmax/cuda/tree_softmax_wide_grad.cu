// Wide nodes, backward: both gradients as tiled matrix products with the probabilities of a chunk of slices.
#include <algorithm>

#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_mma_tile.cuh"

namespace largeout {
namespace {

// Neighbouring elements of an output row, `left` of which exist.
template <int kRun, typename Out>
__device__ __forceinline__ void StoreRun(Out* p, float (&v)[kRun], int64_t left, bool aligned, bool add) {
  if (left <= 0) return;
  if (aligned && left >= kRun) {
    if (add) {
      float old[kRun];
      LoadVec<kRun>(p, old);
#pragma unroll
      for (int i = 0; i < kRun; ++i) v[i] += old[i];
    }
    StoreVec<kRun>(p, v);
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (i < left) GpuFromFloat(add ? v[i] + GpuToFloat(p[i]) : v[i], p + i);
    }
  }
}

template <class Shape, typename Out, typename RowPointer>
__device__ __forceinline__ void StoreTile(float (&acc)[Shape::kTM][Shape::kTN], int64_t rows, int64_t columns,
                                          bool aligned, bool add, const RowPointer& row_pointer, Out*) {
#pragma unroll
  for (int i = 0; i < Shape::kTM; ++i) {
    const int row = Shape::Row(i);
    if (row >= rows) continue;
    Out* p = row_pointer(row);
#pragma unroll
    for (int j = 0; j < Shape::kTN; j += Shape::kRun) {
      float v[Shape::kRun];
#pragma unroll
      for (int n = 0; n < Shape::kRun; ++n) v[n] = acc[i][j + n];
      const int column = Shape::Column(j);
      StoreRun<Shape::kRun>(p + column, v, columns - column, aligned, add);
    }
  }
}

template <typename T, class Shape>
__device__ __forceinline__ void HiddenTile(const TreeBatch<T>& batch, const TreeSlice& s, int64_t column,
                                           bool add, const ProbChunk& chunk, const TreeGradOutputs<T>& out,
                                           float* shared, bool aligned) {
  const int64_t dim = batch.table.dim;
  const GradOperand a{chunk.data + (s.prob - chunk.begin),
                      batch.pair_row + s.first,
                      out.pair_scale + s.first,
                      s.row,
                      s.children,
                      s.count,
                      s.children};
  const RowOperand<T> b{batch.table.rows + s.row * dim + column, dim,    nullptr, s.children,
                        static_cast<int>(dim - column),          aligned};
  float acc[Shape::kTM][Shape::kTN] = {};
  MultiplyTile<Shape, true, false>(a, b, 0, s.children, shared, acc, NothingEachK());
  StoreTile<Shape>(
      acc, s.count, dim - column, aligned, add,
      [&](int t) { return out.d_hidden + batch.pair_token[s.first + t] * dim + column; }, out.d_hidden);
}

template <typename T>
__global__ void __launch_bounds__(kTileThreads, 3)
    WideHidden(TreeBatch<T> batch, const int32_t* wide_group, const int32_t* level_start, int64_t level,
               ProbChunk chunk, TreeGradOutputs<T> out, bool aligned) {
  __shared__ __align__(16) float shared[Tiles<T>::Tall::kShared];
  const int64_t parts = CeilDiv(batch.table.dim, kTileDims);
  int64_t begin = batch.offsets[level_start[level]].wide_slices;
  int64_t end = batch.offsets[level_start[level + 1]].wide_slices;
  if (chunk.starts != nullptr) begin = max(begin, chunk.starts[0].slices), end = min(end, chunk.starts[1].slices);
  begin *= parts, end *= parts;
  for (int64_t unit = begin + blockIdx.x; unit < end; unit += gridDim.x) {
    const int64_t slice = unit / parts, column = (unit - slice * parts) * kTileDims;
    const int group = wide_group[slice];
    const TreeSlice s = SliceOf(batch, group, slice - batch.offsets[group].wide_slices);
    if (s.count > kFlatRows) {
      HiddenTile<T, typename Tiles<T>::Tall>(batch, s, column, level > 0, chunk, out, shared, aligned);
    } else {
      HiddenTile<T, typename Tiles<T>::Flat>(batch, s, column, level > 0, chunk, out, shared, aligned);
    }
  }
}

// Some pairs of a wide node, 64 of its rows, 128 elements of them.
struct RowPiece {
  int group;
  int64_t first, count;     // pairs
  int64_t child, children;  // the first of the tile; all
  int64_t row, prob;        // the node's first row; where the first pair's probabilities are
  int64_t out_row;          // of `child`
  bool partial, add;
};

template <typename T, class Shape>
__device__ __forceinline__ void RowTile(const TreeBatch<T>& batch, const RowPiece& piece, int64_t column,
                                        const ProbChunk& chunk, const TreeGradOutputs<T>& out, float* shared,
                                        bool aligned) {
  const int64_t dim = batch.table.dim, left = piece.children - piece.child;
  const GradOperand a{chunk.data + (piece.prob - chunk.begin) + piece.child,
                      batch.pair_row + piece.first,
                      out.pair_scale + piece.first,
                      piece.row + piece.child,
                      piece.children,
                      static_cast<int>(piece.count),
                      static_cast<int>(left)};
  const RowOperand<float> b{batch.hidden + column,          dim,
                            batch.pair_token + piece.first, static_cast<int>(piece.count),
                            static_cast<int>(dim - column), aligned};
  float acc[Shape::kTM][Shape::kTN] = {};
  float bias = 0.f;
  const bool wants_bias = column == 0 && out.bias_grads != nullptr && threadIdx.x < Shape::kM;
  MultiplyTile<Shape, false, false>(a, b, 0, static_cast<int>(piece.count), shared, acc,
                                    [&](const auto& grad) {
                                      if (wants_bias) {
                                        for (int k = 0; k < kTileK; ++k) bias += grad(threadIdx.x, k);
                                      }
                                    });
  if (piece.partial) {
    float* rows = out.partials + piece.out_row * dim + column;
    StoreTile<Shape>(
        acc, left, dim - column, aligned, piece.add, [&](int r) { return rows + r * dim; }, rows);
  } else {
    T* rows = out.row_grads + piece.out_row * dim + column;
    StoreTile<Shape>(
        acc, left, dim - column, aligned, piece.add, [&](int r) { return rows + r * dim; }, rows);
  }
  if (wants_bias && threadIdx.x < left) {
    float* to = (piece.partial ? out.bias_partials : out.bias_grads) + piece.out_row + threadIdx.x;
    *to = piece.add ? *to + bias : bias;
  }
}

template <typename T>
__global__ void __launch_bounds__(kTileThreads, 3)
    WideRows(TreeBatch<T> batch, const int32_t* weight_group, bool keep_partials, ProbChunk chunk,
             TreeGradOutputs<T> out, bool aligned) {
  __shared__ __align__(16) float shared[Tiles<T>::Tall::kShared];
  RowPiece piece;
  piece.group = weight_group[blockIdx.x];
  const TreeOffsets& offsets = batch.offsets[piece.group];
  const int node = batch.group_node[piece.group];
  piece.row = batch.tree.node_start[node];
  piece.children = batch.tree.node_start[node + 1] - piece.row;
  const int64_t start = batch.group_start[piece.group], pairs = batch.group_start[piece.group + 1] - start;
  const int64_t each = SplitPairs(pairs, piece.children, batch.table.dim), splits = CeilDiv(pairs, each);
  const int64_t high = CeilDiv(piece.children, kTileRows), local = blockIdx.x - offsets.weight_tiles;
  const int64_t split = local / high;
  piece.child = local % high * kTileRows;
  // The slices of this node that are in the chunk, within this split.
  const int64_t slice_probs = kSlice * piece.children;
  const int64_t chunk_first =
      max(int64_t{0}, CeilDiv(max(int64_t{0}, chunk.begin - offsets.probs), slice_probs)) * kSlice;
  const int64_t chunk_last =
      chunk.end <= offsets.probs ? 0 : CeilDiv(chunk.end - offsets.probs, slice_probs) * kSlice;
  const int64_t first = max(split * each, chunk_first),
                last = min(min((split + 1) * each, pairs), chunk_last);
  if (first >= last) return;
  piece.first = start + first;
  piece.count = last - first;
  piece.prob = offsets.probs + first * piece.children;
  piece.add = first > split * each;
  piece.partial = splits > 1 || keep_partials;
  piece.out_row =
      (piece.partial ? offsets.partial_rows + split * piece.children : offsets.rows) + piece.child;
  const int64_t column = blockIdx.y * static_cast<int64_t>(kTileDims);
  if (piece.children - piece.child > kFlatRows) {
    RowTile<T, typename Tiles<T>::Tall>(batch, piece, column, chunk, out, shared, aligned);
  } else {
    RowTile<T, typename Tiles<T>::Flat>(batch, piece, column, chunk, out, shared, aligned);
  }
}

}  // namespace

template <typename T>
int WideHiddenGrad(const TreeBatch<T>& batch, const TreeWork& work, int64_t level, const ProbChunk& chunk,
                   const TreeGradOutputs<T>& out, GpuStream stream) {
  if (batch.table.dim == 0) return 0;  // d_hidden has no elements
  const bool aligned = RowsAligned(batch.table.dim, batch.table.rows, out.d_hidden);
  const int64_t units = work.wide_slices * CeilDiv(batch.table.dim, kTileDims);
  return Launch(WideHidden<T>, static_cast<unsigned>(std::min<int64_t>(units, 132 * 24)), kTileThreads, 0,
                stream, batch, work.wide_group, work.level_start, level, chunk, out, aligned);
}

template <typename T>
int WideRowGrad(const TreeBatch<T>& batch, const TreeWork& work, const ProbChunk& chunk,
                const TreeGradOutputs<T>& out, GpuStream stream) {
  if (work.weight_tiles == 0) return 0;
  const bool aligned = RowsAligned(batch.table.dim, batch.hidden, out.row_grads, out.partials);
  const dim3 grid(static_cast<unsigned>(work.weight_tiles),
                  static_cast<unsigned>(RowPieces(batch.table.dim, kTileDims)));
  return Launch(WideRows<T>, grid, kTileThreads, 0, stream, batch, work.weight_group, work.keep_partials,
                chunk, out, aligned);
}

#define LARGEOUT_INSTANTIATE(T)                                                                   \
  template int WideHiddenGrad<T>(const TreeBatch<T>&, const TreeWork&, int64_t, const ProbChunk&, \
                                 const TreeGradOutputs<T>&, GpuStream);                           \
  template int WideRowGrad<T>(const TreeBatch<T>&, const TreeWork&, const ProbChunk&,             \
                              const TreeGradOutputs<T>&, GpuStream);
LARGEOUT_INSTANTIATE(float)
LARGEOUT_INSTANTIATE(bfloat16)

}  // namespace largeout
