// How kernels sum the occurrences of a row, internally: one team where they are few, thread blocks where they are many.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_SUMS_CUH_
#define LARGEOUT_EMBEDDING_EMBEDDING_SUMS_CUH_

#include "embedding/cuda/embedding_cuda.h"
#include "embedding/cuda/embedding_tile.cuh"

namespace largeout {

constexpr int kHot = 128;         // occurrences from which a row is cut into pieces
constexpr int kMaxPieces = 256;   // of one row
// Pieces of a row and their size, by the number of its occurrences alone.
__device__ __forceinline__ int32_t PieceSize(int32_t count) {
  return count <= kHot * kMaxPieces ? kHot : (count + kMaxPieces - 1) / kMaxPieces;
}
__device__ __forceinline__ int32_t Pieces(int32_t count) {
  return count <= kHot ? 0 : (count + PieceSize(count) - 1) / PieceSize(count);
}

// Sums rows source(i) of `in` for i in [begin, end) with stride `stride`, in order, kRows at a time in flight.
template <int kRows, typename T, int kPack, int kVectors, typename Source>
__device__ __forceinline__ void SumInOrder(const T* in, int64_t begin, int64_t end, int64_t stride, int64_t step,
                                           int64_t left, const Source& source, Tile<T, kPack, kVectors>* tile) {
  for (int64_t i = begin; i < end; i += stride * kRows) {
    typename Tile<T, kPack, kVectors>::Piece piece[kRows][kVectors];
    int64_t row[kRows];
    float factor[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (i + r * stride < end) source(i + r * stride, &row[r], &factor[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (i + r * stride < end) Tile<T, kPack, kVectors>::Load(in + row[r], step, left, piece[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (i + r * stride < end) tile->Add(factor[r], step, left, piece[r]);
    }
  }
}

// Where occurrence i finds its gradient: the offset of its row, and its factor.
struct Occurrences {
  EmbeddingGradPlanCuda plan;
  int64_t dim;
  __device__ __forceinline__ void operator()(int64_t i, int64_t* row, float* factor) const {
    const int32_t position = plan.order[i];
    const int32_t bag = plan.bag != nullptr ? plan.bag[position]
                                            : static_cast<int32_t>(static_cast<uint32_t>(position) /
                                                                   static_cast<uint32_t>(plan.bag_size));
    *row = bag * dim;
    *factor = plan.factor != nullptr ? plan.factor[position] : 1.f;
  }
};

// A block sums rows [begin, end): each of its teams every teams-th one, then the teams in order.
template <typename T, int kPack, typename Source, typename Write>
__device__ __forceinline__ void SumByBlock(const T* in, int64_t begin, int64_t end, int64_t dim, int lanes,
                                           const Source& source, const Write& write) {
  __shared__ float sums[kThreads * kPack];
  const int teams = kThreads / lanes, team = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const int64_t step = int64_t{lanes} * kPack;
  for (int64_t first = 0; first < dim; first += step) {
    const int64_t column = first + lane * kPack;
    Tile<T, kPack, 1> tile;
    tile.Clear();
    if (column < dim) SumInOrder<kFlight<1>>(in + column, begin + team, end, teams, step, dim - column, source, &tile);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sums[threadIdx.x * kPack + i] = tile.sum[0][i];
    __syncthreads();
    for (int64_t c = threadIdx.x; c < step && first + c < dim; c += kThreads) {
      float sum = 0.f;
      for (int t = 0; t < teams; ++t) sum += sums[t * step + c];
      write(first + c, sum);
    }
    __syncthreads();
  }
}

// The rows of more than kHot occurrences, in pieces that blocks have summed.
struct HotPieces {
  int64_t most = 0;                      // pieces, at most
  const int32_t* piece_start = nullptr;  // [most_unique + 1] the first piece of each group
  const int32_t* piece_group = nullptr;  // [most] the group of each piece; -1 beyond the last one
  float* partials = nullptr;             // [most, dim] the sum of each piece
};

// Sums pieces; hot->most is 0 where there can be none. scratch: EmbeddingGradScratchCuda. Does not wait.
template <typename T>
int SumHotPiecesCuda(const EmbeddingGradPlanCuda& plan, const T* grad, int64_t dim, void* scratch, GpuStream stream,
                     HotPieces* hot);

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_SUMS_CUH_
