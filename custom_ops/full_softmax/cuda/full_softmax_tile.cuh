// The tiles of full_softmax, those of common/cuda/gemm/, and the logits of one.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_TILE_CUH_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_TILE_CUH_

#include "common/cuda/cuda.h"
#include "common/cuda/gemm/multiply.cuh"
#include "full_softmax/full_softmax.h"

namespace largeout {

// Terms and Gradient begin with it: makes the batch with targets of int32, -1 in the place of bad ones. Waits for
// the stream to learn *bad; bad null, or with the call's `late`, it does not wait (full_softmax.cu).
template <typename H, typename Id>
int CheckBatch(const SoftmaxBatch<H, Id>& batch, int64_t classes, const GpuCall& call,
               SoftmaxBatch<H, int32_t>* checked, BadTarget* bad);

// Rows of a tile are tokens, columns classes; or either of them, and elements of a row. Rows of type T,
// hidden vectors of type H.
template <typename T, typename H>
using SoftmaxTile = typename Tiles<FactorType<T, H>>::LargeM;

template <typename T, typename H>
constexpr int kLogitBytes = kTileBytes<SoftmaxTile<T, H>, true, true, RowOperand<H>, TableOperand<T, H>>;

// The logits of a tile, whose first token and class these are.
template <typename T, typename H>
__device__ __forceinline__ void MultiplyLogits(const H* hidden, int64_t tokens, const SoftmaxRows<T>& table,
                                               int64_t token, int64_t first, const CopiedRows& copied,
                                               bool tf32, char* shared,
                                               float (&acc)[SoftmaxTile<T, H>::kTM][SoftmaxTile<T, H>::kTN]) {
  using Shape = SoftmaxTile<T, H>;
  const int64_t dim = table.dim;
  MultiplyTile<Shape, true, true>(
      PartOf(hidden, dim, tokens, dim, token, 0, copied.hidden),
      PartOf<kRoundsFactors<H>>(table.rows, dim, table.classes, dim, first, 0, copied.table), 0,
      static_cast<int>(dim), tf32, shared, acc, NothingEachK());
  if (table.bias == nullptr) return;
#pragma unroll
  for (int j = 0; j < Shape::kTN; ++j) {
    const int64_t c = first + Shape::Column(j);
    const float bias = c < table.classes ? table.bias[c] : 0.f;
#pragma unroll
    for (int i = 0; i < Shape::kTM; ++i) acc[i][j] += bias;
  }
}

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_TILE_CUH_
