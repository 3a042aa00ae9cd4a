// The tiles of full_softmax: the shapes of its three products, how the threads of a block share the rows and
// columns of a tile, and the logits of one. Products are those of tree_softmax_tile.cuh, and for tables of
// bfloat16 of tree_softmax_mma_tile.cuh.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_TILE_CUH_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_TILE_CUH_

#include "full_softmax/cuda/full_softmax_cuda.h"
#include "tree_softmax/cuda/tree_softmax_mma_tile.cuh"

namespace largeout {

constexpr int kTileBlocks = 3;  // of a multiprocessor

template <typename T>
struct SoftmaxTiles {
  using Logits = TileShape<64, 128, 8, 8>;  // tokens x classes
  // Tokens or classes x columns: 64 of these, so that little of a tile is beyond a row's end.
  using Gradient = TileShape<128, 64, 8, 8>;
};
template <>
struct SoftmaxTiles<bfloat16> {
  using Logits = MmaShape<64, 128, 2>;
  using Gradient = MmaShape<128, 64, 4>;
};
constexpr int kLogitTokens = 64, kLogitClasses = 128;
constexpr int kGradientRows = 128, kGradientColumns = 64;

// A row of a tile is shared by kAcross threads, of which this one is Across(); a column by kDown, of which it
// is Down().
template <class Shape>
struct TileShares;
template <int M, int N, int TM, int TN>
struct TileShares<TileShape<M, N, TM, TN>> {
  static constexpr int kAcross = N / TN, kDown = M / TM;
  static __device__ int Across() { return threadIdx.x % kAcross; }
  static __device__ int Down() { return threadIdx.x / kAcross; }
};
template <int M, int N, int WM>
struct TileShares<MmaShape<M, N, WM>> {
  static constexpr int kAcross = 4 / WM * 4, kDown = WM * 8;
  static __device__ int Across() { return threadIdx.x / 32 / WM * 4 + threadIdx.x % 4; }
  static __device__ int Down() { return threadIdx.x / 32 % WM * 8 + threadIdx.x % 32 / 4; }
};

// The rows of a matrix from `row` on, and their elements from `column` on.
template <typename X>
__device__ __forceinline__ RowOperand<X> PartOf(const X* matrix, int64_t stride, int64_t rows,
                                                int64_t columns, int64_t row, int64_t column, bool aligned) {
  return {matrix + row * stride + column,     stride, nullptr, static_cast<int>(rows - row),
          static_cast<int>(columns - column), aligned};
}

// The logits of a tile without their biases, those of a table's rows [0, classes).
template <class Shape, typename T, typename H>
__device__ __forceinline__ void MultiplyLogits(const H* hidden, int64_t tokens, const T* rows,
                                               int64_t classes, int64_t dim, int64_t token, int64_t first,
                                               bool aligned, float* shared,
                                               float (&acc)[Shape::kTM][Shape::kTN]) {
  MultiplyTile<Shape, true, true>(PartOf(hidden, dim, tokens, dim, token, 0, aligned),
                                  PartOf(rows, dim, classes, dim, first, 0, aligned), 0,
                                  static_cast<int>(dim), shared, acc, NothingEachK());
}

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_TILE_CUH_
