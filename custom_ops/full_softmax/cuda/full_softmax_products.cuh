// The two products with the gradients of a chunk of logits: those of rows and of hidden vectors.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_PRODUCTS_CUH_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_PRODUCTS_CUH_

#include "full_softmax/cuda/full_softmax_gradients.cuh"
#include "full_softmax/cuda/full_softmax_tile.cuh"

namespace largeout {

template <typename T, typename H>
constexpr int kRowBytes = kTileBytes<SoftmaxTile<T, H>, false, false, RowOperand<H>, RowOperand<H>>;
template <typename T, typename H>
constexpr int kHiddenBytes = kTileBytes<SoftmaxTile<T, H>, true, false, RowOperand<H>, TableOperand<T, H>>;

// out (+)= gradient^T hidden, [width, dim]. Where other tokens come before or after, `sums` [width, dim] has
// the sum so far.
struct RowSums {
  float* sums;
  bool add, last;
};
template <typename T, typename H>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    RowGradients(SoftmaxChunk<H> chunk, const H* hidden, int64_t dim, RowSums of, T* d_rows, bool copied,
                 bool aligned, bool tf32) {
  using Shape = SoftmaxTile<T, H>;
  const int64_t wide = CeilDiv(dim, kTileColumns);
  const int64_t row = blockIdx.x / wide * kTileRows, column = blockIdx.x % wide * kTileColumns;
  float acc[Shape::kTM][Shape::kTN] = {};
  MultiplyTile<Shape, false, false>(
      PartOf(chunk.gradient, chunk.stride, chunk.count, chunk.width, 0, row, true),
      PartOf(hidden + chunk.token * dim, dim, chunk.count, dim, 0, column, copied), 0,
      static_cast<int>(chunk.count), tf32, DynamicShared<char>(), acc, NothingEachK());
  const int64_t at = row * dim + column;
  const auto before = [&](int r) -> const float* { return of.add ? of.sums + at + r * dim : nullptr; };
  if (of.last) {
    StoreTile<Shape>(
        acc, chunk.width - row, dim - column, aligned, [&](int r) { return d_rows + at + r * dim; }, before);
  } else {
    StoreTile<Shape>(
        acc, chunk.width - row, dim - column, aligned, [&](int r) { return of.sums + at + r * dim; }, before);
  }
}

// parts[part] (+)= gradient rows, over the classes of the part, for the tokens of the chunk. parts: [parts,
// all tokens, dim].
template <typename T, typename H>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    HiddenGradients(SoftmaxChunk<H> chunk, SoftmaxRows<T> table, int64_t of_part, int64_t all_tokens,
                    bool add, float* parts, bool copied, bool aligned, bool tf32) {
  using Shape = SoftmaxTile<T, H>;
  const int64_t dim = table.dim, wide = CeilDiv(dim, kTileColumns), high = CeilDiv(chunk.count, kTileRows);
  const int64_t column = blockIdx.x % wide * kTileColumns, token = blockIdx.x / wide % high * kTileRows;
  const int64_t part = blockIdx.x / wide / high;
  // A last chunk may have nothing for the last parts.
  const int64_t begin = min(part * of_part, chunk.width), end = min(begin + of_part, chunk.width);
  if (begin == end && add) return;
  float acc[Shape::kTM][Shape::kTN] = {};
  MultiplyTile<Shape, true, false>(
      PartOf(chunk.gradient, chunk.stride, chunk.count, end, token, 0, true),
      PartOf<kRoundsFactors<H>>(table.rows + chunk.first * dim, dim, end, dim, 0, column, copied),
      static_cast<int>(begin), static_cast<int>(end), tf32, DynamicShared<char>(), acc, NothingEachK());
  float* out = parts + (part * all_tokens + chunk.token + token) * dim + column;
  StoreTile<Shape>(
      acc, chunk.count - token, dim - column, aligned, [&](int t) { return out + t * dim; },
      [&](int t) -> const float* { return add ? out + t * dim : nullptr; });
}

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_PRODUCTS_CUH_
