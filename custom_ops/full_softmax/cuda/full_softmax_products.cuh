// The two products with the gradients of a chunk of logits: those of rows and of hidden vectors.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_PRODUCTS_CUH_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_PRODUCTS_CUH_

#include "full_softmax/cuda/full_softmax_tile.cuh"

namespace largeout {

// One chunk: tokens from `token` on, classes from `first` on. `gradient` [tokens, stride] are those of its
// logits.
struct SoftmaxChunk {
  int64_t token, count, first, width, stride;
  float* gradient;
  float* column_sums;  // [tiles of tokens, stride]
};

// Writes a tile, `before` being added where it is not null; the pointers are to its first element in matrices
// of `dim` columns, of which the tile may have `columns`.
template <class Shape, typename Out>
__device__ __forceinline__ void StoreTile(float (&acc)[Shape::kTM][Shape::kTN], int64_t rows, int64_t columns,
                                          int64_t dim, bool aligned, const float* before, Out* out) {
#pragma unroll
  for (int i = 0; i < Shape::kTM; ++i) {
    const int row = Shape::Row(i);
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < Shape::kTN; j += Shape::kRun) {
      const int column = Shape::Column(j);
      const int64_t at = row * dim + column;
      float run[Shape::kRun], old[Shape::kRun] = {};
      if (aligned && column + Shape::kRun <= columns) {
        if (before != nullptr) LoadVec<Shape::kRun>(before + at, old);
#pragma unroll
        for (int n = 0; n < Shape::kRun; ++n) run[n] = acc[i][j + n] + old[n];
        StoreVec<Shape::kRun>(out + at, run);
      } else {
#pragma unroll
        for (int n = 0; n < Shape::kRun; ++n) {
          if (column + n < columns)
            GpuFromFloat(acc[i][j + n] + (before == nullptr ? 0.f : before[at + n]), out + at + n);
        }
      }
    }
  }
}

// out (+)= gradient^T hidden, [width, dim]. Where other tokens come before or after, `sums` [width, dim] has
// the sum so far.
struct RowSums {
  float* sums;
  bool add, last;
};
template <typename T, typename H>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    RowGradients(SoftmaxChunk chunk, const H* hidden, int64_t dim, RowSums of, T* d_rows, bool aligned) {
  using Shape = typename SoftmaxTiles<T>::Gradient;
  static_assert(Shape::kM == kGradientRows && Shape::kN == kGradientColumns, "what the launcher counts on");
  __shared__ __align__(16) float shared[Shape::kShared];
  const int64_t wide = CeilDiv(dim, kGradientColumns);
  const int64_t row = blockIdx.x / wide * kGradientRows, column = blockIdx.x % wide * kGradientColumns;
  float acc[Shape::kTM][Shape::kTN] = {};
  MultiplyTile<Shape, false, false>(
      PartOf(chunk.gradient, chunk.stride, chunk.count, chunk.width, 0, row, true),
      PartOf(hidden + chunk.token * dim, dim, chunk.count, dim, 0, column, aligned), 0,
      static_cast<int>(chunk.count), shared, acc, NothingEachK());
  const int64_t at = row * dim + column;
  const float* before = of.add ? of.sums + at : nullptr;
  if (of.last) {
    StoreTile<Shape>(acc, chunk.width - row, dim - column, dim, aligned, before, d_rows + at);
  } else {
    StoreTile<Shape>(acc, chunk.width - row, dim - column, dim, aligned, before, of.sums + at);
  }
}

// parts[part] (+)= gradient rows, over the classes of the part, for the tokens of the chunk. parts: [parts,
// all tokens, dim].
template <typename T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    HiddenGradients(SoftmaxChunk chunk, SoftmaxRows<T> table, int64_t of_part, int64_t all_tokens, bool add,
                    float* parts, bool aligned) {
  using Shape = typename SoftmaxTiles<T>::Gradient;
  __shared__ __align__(16) float shared[Shape::kShared];
  const int64_t dim = table.dim, wide = CeilDiv(dim, kGradientColumns),
                high = CeilDiv(chunk.count, kGradientRows);
  const int64_t column = blockIdx.x % wide * kGradientColumns,
                token = blockIdx.x / wide % high * kGradientRows;
  const int64_t part = blockIdx.x / wide / high;
  // A last chunk may have nothing for the last parts.
  const int64_t begin = min(part * of_part, chunk.width), end = min(begin + of_part, chunk.width);
  if (begin == end && add) return;
  float acc[Shape::kTM][Shape::kTN] = {};
  MultiplyTile<Shape, true, false>(PartOf(chunk.gradient, chunk.stride, chunk.count, end, token, 0, true),
                                   PartOf(table.rows + chunk.first * dim, dim, end, dim, 0, column, aligned),
                                   static_cast<int>(begin), static_cast<int>(end), shared, acc,
                                   NothingEachK());
  float* out = parts + (part * all_tokens + chunk.token + token) * dim + column;
  StoreTile<Shape>(acc, chunk.count - token, dim - column, dim, aligned, add ? out : nullptr, out);
}

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_PRODUCTS_CUH_
