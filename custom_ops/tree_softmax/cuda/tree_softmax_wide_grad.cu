// Wide nodes, backward: both gradients as tiled matrix products with the probabilities of a chunk of slices.
//
// Bounds, for n pairs of a node of c children: 2 n c dim flops for each gradient; bytes: 4 n c of
// probabilities, read once for each 128 elements of a row, by both; c dim elements of rows read for every 128
// pairs, or from the L2 cache where slices share them; n dim floats read, and as many read and written; c dim
// elements of row gradients written.
#include "common/cuda/gemm/multiply.cuh"
#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {
namespace {

// (probability - 1 at the path's child) * scale, for pairs x children.
struct GradOperand {
  using Element = float;
  static constexpr bool kConverts = true;
  const float* base;  // the probability of pair 0, child 0
  const int32_t* pair_row;
  const float* scale;
  int64_t first_row;  // the table row of child 0
  int64_t stride;     // children of the node
  int rows, columns;  // pairs; children from child 0 on

  __device__ __forceinline__ const float* Line(int pair) const {
    return pair < rows ? base + pair * stride : nullptr;
  }
  __device__ __forceinline__ uint4 Read(const float* line, int child) const {
    uint4 x = {};
    if (line == nullptr) return x;
    const uint32_t* p = reinterpret_cast<const uint32_t*>(line + child);
    if (child + 4 <= columns && reinterpret_cast<uintptr_t>(p) % 16 == 0)
      return *reinterpret_cast<const uint4*>(p);
    if (child < columns) x.x = p[0];
    if (child + 1 < columns) x.y = p[1];
    if (child + 2 < columns) x.z = p[2];
    if (child + 3 < columns) x.w = p[3];
    return x;
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

template <typename T>
constexpr int kHiddenBytes = kTileBytes<typename Tiles<T>::Tall, true, false, GradOperand, RowOperand<T>>;
template <typename T>
constexpr int kRowBytes = kTileBytes<typename Tiles<T>::Tall, false, false, GradOperand, RowOperand<float>>;

template <typename T, class Shape>
__device__ __forceinline__ void HiddenTile(const TreeBatch<T>& batch, const TreeSlice& s, int64_t column,
                                           bool add, const ProbChunk& chunk, const TreeGradOutputs<T>& out,
                                           char* shared, bool copied, bool aligned) {
  const int64_t dim = batch.table.dim;
  const GradOperand a{chunk.data + (s.prob - chunk.begin),
                      batch.pair_row + s.first,
                      out.pair_scale + s.first,
                      s.row,
                      s.children,
                      s.count,
                      s.children};
  const RowOperand<T> b{batch.table.rows + s.row * dim + column, dim,   nullptr, s.children,
                        static_cast<int>(dim - column),          copied};
  float acc[Shape::kTM][Shape::kTN] = {};
  MultiplyTile<Shape, true, false>(a, b, 0, s.children, shared, acc, NothingEachK());
  const auto line = [&](int t) { return out.d_hidden + batch.pair_token[s.first + t] * dim + column; };
  StoreTile<Shape>(acc, s.count, dim - column, aligned, line,
                   [&](int t) -> const float* { return add ? line(t) : nullptr; });
}

template <typename T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    WideHidden(TreeBatch<T> batch, const int32_t* wide_group, const int32_t* level_start, int64_t level,
               ProbChunk chunk, TreeGradOutputs<T> out, bool copied, bool aligned) {
  char* shared = DynamicShared<char>();
  const int64_t parts = CeilDiv(batch.table.dim, kTileColumns);
  int64_t begin = batch.offsets[level_start[level]].wide_slices;
  int64_t end = batch.offsets[level_start[level + 1]].wide_slices;
  if (chunk.starts != nullptr) begin = max(begin, chunk.starts[0].slices), end = min(end, chunk.starts[1].slices);
  begin *= parts, end *= parts;
  for (int64_t unit = begin + blockIdx.x; unit < end; unit += gridDim.x) {
    const int64_t slice = unit / parts, column = (unit - slice * parts) * kTileColumns;
    const int group = wide_group[slice];
    const TreeSlice s = SliceOf(batch, group, slice - batch.offsets[group].wide_slices, 0);
    if (s.count > kFlatRows) {
      HiddenTile<T, typename Tiles<T>::Tall>(batch, s, column, level > 0, chunk, out, shared, copied,
                                             aligned);
    } else {
      HiddenTile<T, typename Tiles<T>::Flat>(batch, s, column, level > 0, chunk, out, shared, copied,
                                             aligned);
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

template <typename T, class Shape>
__device__ __forceinline__ void RowTile(const TreeBatch<T>& batch, const RowPiece& piece, int64_t column,
                                        const ProbChunk& chunk, const TreeGradOutputs<T>& out, char* shared,
                                        bool copied, bool aligned) {
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
                            static_cast<int>(dim - column), copied};
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

template <typename T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    WideRows(TreeBatch<T> batch, const int32_t* weight_group, bool keep_partials, ProbChunk chunk,
             TreeGradOutputs<T> out, bool copied, bool aligned) {
  char* shared = DynamicShared<char>();
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
  piece.partial = splits > 1 || keep_partials;
  piece.out_row =
      (piece.partial ? offsets.partial_rows + split * piece.children : offsets.rows) + piece.child;
  const int64_t column = blockIdx.y * static_cast<int64_t>(kTileColumns);
  if (piece.children - piece.child > kFlatRows) {
    RowTile<T, typename Tiles<T>::Tall>(batch, piece, column, chunk, out, shared, copied, aligned);
  } else {
    RowTile<T, typename Tiles<T>::Flat>(batch, piece, column, chunk, out, shared, copied, aligned);
  }
}

}  // namespace

template <typename T>
int WideHiddenGrad(const TreeBatch<T>& batch, const TreeWork& work, int64_t level, const ProbChunk& chunk,
                   const TreeGradOutputs<T>& out, GpuStream stream) {
  if (batch.table.dim == 0) return 0;  // d_hidden has no elements
  const int64_t dim = batch.table.dim, units = work.wide_slices * CeilDiv(dim, kTileColumns);
  return Launch(WideHidden<T>, TurnBlocks(units, 132 * 24), kTileThreads, kHiddenBytes<T>, stream, batch,
                work.wide_group, work.level_start, level, chunk, out, RowsCopied(dim, batch.table.rows),
                RowsAligned(dim, out.d_hidden, nullptr));
}

template <typename T>
int WideRowGrad(const TreeBatch<T>& batch, const TreeWork& work, const ProbChunk& chunk,
                const TreeGradOutputs<T>& out, GpuStream stream) {
  if (work.weight_tiles == 0) return 0;
  const int64_t dim = batch.table.dim;
  const dim3 grid(static_cast<unsigned>(work.weight_tiles),
                  static_cast<unsigned>(RowPieces(dim, kTileColumns)));
  return Launch(WideRows<T>, grid, kTileThreads, kRowBytes<T>, stream, batch, work.weight_group,
                work.keep_partials, chunk, out, RowsCopied(dim, batch.hidden),
                RowsAligned(dim, out.row_grads, out.partials));
}

#define LARGEOUT_INSTANTIATE(T)                                                                   \
  template int WideHiddenGrad<T>(const TreeBatch<T>&, const TreeWork&, int64_t, const ProbChunk&, \
                                 const TreeGradOutputs<T>&, GpuStream);                           \
  template int WideRowGrad<T>(const TreeBatch<T>&, const TreeWork&, const ProbChunk&,             \
                              const TreeGradOutputs<T>&, GpuStream);
LARGEOUT_INSTANTIATE(float)
LARGEOUT_INSTANTIATE(bfloat16)

}  // namespace largeout
