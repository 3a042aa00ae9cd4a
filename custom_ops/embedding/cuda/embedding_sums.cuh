// Sums over the occurrences of a row: by one team where they are few, by thread blocks where they are many. Internal.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_SUMS_CUH_
#define LARGEOUT_EMBEDDING_EMBEDDING_SUMS_CUH_

#include "embedding/cuda/embedding_plan.h"
#include "embedding/cuda/embedding_tile.cuh"
#include "embedding/cuda/embedding_tuning.cuh"

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

// The lanes of a team.
struct Lanes {
  int count, own;
  unsigned mask;
  __device__ __forceinline__ explicit Lanes(int count)
      : count(count),
        own(static_cast<int>(threadIdx.x) % count),
        mask(count == 32 ? 0xffffffffu : ((1u << count) - 1) << (threadIdx.x % 32 / count * count)) {}
  template <typename X>
  __device__ __forceinline__ X From(X x, int lane) const {
    return __shfl_sync(mask, x, lane, count);
  }
};

// Sums rows source(i) of `in` [.., dim] for i in [begin, end) with stride `stride`, in order, kRows at a time
// in flight. All lanes of a team take part, also those with no columns left: each asks for one of the next
// rows.
template <int kRows, typename T, int kPack, int kVectors, typename Source>
__device__ __forceinline__ void SumInOrder(const Lanes& lanes, const T* in, int32_t begin, int32_t end,
                                           int stride, int64_t dim, int64_t step, int64_t left,
                                           const Source& source, Tile<T, kPack, kVectors>* tile) {
  const bool shared = lanes.count >= kRows;  // else each lane asks for all of them
  const int most = shared ? lanes.count : kRows;
  for (int32_t base = begin; base < end; base += stride * most) {
    int32_t own_row = 0;
    float own_factor = 0.f;
    if (shared && base + lanes.own * stride < end) source(base + lanes.own * stride, &own_row, &own_factor);
    const int count = min(most, (end - base + stride - 1) / stride);
    for (int t = 0; t < count; t += kRows) {
      typename Tile<T, kPack, kVectors>::Piece piece[kRows][kVectors];
      int32_t row[kRows];
      float factor[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (t + r >= count) continue;
        if (shared) {
          row[r] = lanes.From(own_row, t + r), factor[r] = lanes.From(own_factor, t + r);
        } else {
          source(base + (t + r) * stride, &row[r], &factor[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (t + r < count) Tile<T, kPack, kVectors>::Load(in + row[r] * dim, step, left, piece[r]);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (t + r < count) tile->Add(factor[r], step, left, piece[r]);
      }
    }
  }
}

// The source of an occurrence's gradient: its bag, and its factor.
struct Occurrences {
  EmbeddingGradPlanCuda plan;
  __device__ __forceinline__ void operator()(int32_t i, int32_t* bag, float* factor) const {
    const int32_t position = plan.order[i];
    *bag = plan.bag != nullptr
               ? plan.bag[position]
               : static_cast<int32_t>(static_cast<uint32_t>(position) / static_cast<uint32_t>(plan.bag_size));
    *factor = plan.factor != nullptr ? plan.factor[position] : 1.f;
  }
};

// The row of a lane, one of a batch that its team goes through: each lane reads the place of one row, so the team
// does not wait for each in turn. A row of more than kHot occurrences has none here.
struct OwnRow {
  int64_t id = 0;
  int32_t begin = 0, count = 0;  // of its occurrences
  int32_t bag = 0;               // of the first one
  float factor = 0.f;

  __device__ __forceinline__ OwnRow(const Occurrences& occurrences, int64_t group, bool exists) {
    const EmbeddingGradPlanCuda& plan = occurrences.plan;
    if (!exists) return;
    id = plan.unique[group], begin = plan.starts[group], count = plan.starts[group + 1] - begin;
    if (count > kHot) count = 0;
    if (count > 0) occurrences(begin, &bag, &factor);
  }
};

// The teams that go through up to `rows` rows, at most as many as they have lanes each; fewer where there
// would be too few teams. Rows of a team are `teams` apart: where ids are ordered by how often they occur,
// neighbours would all be long.
inline int64_t TeamsOf(int64_t rows, int lanes) {
  const int64_t each =
      std::clamp<int64_t>(rows * lanes / EmbeddingTuning::kSumThreads, std::min(lanes, 4), lanes);
  return (rows + each - 1) / each;
}

// use(0, unit), use(1, unit), ... below `count`; load(i, &unit) has read what is in a unit while the one
// before was used.
template <typename Unit, typename Load, typename Use>
__device__ __forceinline__ void InTurn(int count, const Load& load, const Use& use) {
  Unit unit, next;
  if (count > 0) load(0, &next);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    unit = next;
    if (i + 1 < count) load(i + 1, &next);
    use(i, unit);
  }
}

// A block sums rows [begin, end): each of its teams every teams-th one, then the teams in order.
template <typename T, int kPack, typename Source, typename Write>
__device__ __forceinline__ void SumByBlock(const T* in, int32_t begin, int32_t end, int64_t dim,
                                           int lane_count, const Source& source, const Write& write) {
  __shared__ float sums[kThreads * kPack];
  const Lanes lanes(lane_count);
  const int teams = kThreads / lanes.count, team = threadIdx.x / lanes.count;
  const int64_t step = int64_t{lanes.count} * kPack;
  for (int64_t first = 0; first < dim; first += step) {
    const int64_t column = first + lanes.own * kPack;
    Tile<T, kPack, 1> tile;
    tile.Clear();
    SumInOrder<kFlight<1>>(lanes, in + column, begin + team, end, teams, dim, step, dim - column, source,
                           &tile);
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

// A piece of a row of more than kHot occurrences.
//
// Where its sum is follows from the positions alone, so that nobody counts the pieces of the rows before. Slot s
// is for the row that has position kSlot * s, and the n pieces of a row that begins at b have the slots from
// ceil(b / kSlot) on. These positions are its own: the last one, kSlot * (ceil(b / kSlot) + n - 1), is at most
// b + kSlot - 1 + kSlot * ((count - 1) / kHot), and so before b + count, for kSlot is kHot / 2 and count above kHot.
constexpr int64_t kSlot = kHot / 2;
struct HotPiece {
  int32_t group = -1;  // the row of the gradient; -1: the slot is nobody's
  int64_t first = 0;   // the slot of its first piece
  int32_t count = 0;   // of its pieces

  __device__ __forceinline__ static HotPiece Of(const EmbeddingGradPlanCuda& plan, int64_t slot) {
    HotPiece piece;
    if (slot * kSlot >= plan.counts->valid) return piece;
    const int32_t group = plan.group[slot * kSlot] - 1, begin = plan.starts[group];
    piece.first = (begin + kSlot - 1) / kSlot;
    piece.count = Pieces(plan.starts[group + 1] - begin);
    if (slot >= piece.first && slot < piece.first + piece.count) piece.group = group;
    return piece;
  }
};

// The sums of all pieces.
struct HotPieces {
  int64_t slots = 0;
  float* partials = nullptr;  // [slots, dim]
};

// Sums pieces; hot->slots is 0 where there can be none. Does not wait.
template <typename T>
int SumHotPiecesCuda(const EmbeddingGradPlanCuda& plan, const T* grad, int64_t dim, const GpuCall& call,
                     HotPieces* hot);

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_SUMS_CUH_
