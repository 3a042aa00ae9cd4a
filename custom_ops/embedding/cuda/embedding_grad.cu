// The gradient of the table from its plan (embedding_group.cu): every row is the sum of its occurrences.
#include <cub/device/device_scan.cuh>
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "embedding/cuda/embedding_cuda.h"
#include "embedding/cuda/embedding_tile.cuh"

namespace largeout {
namespace {

constexpr int kHot = 128;         // occurrences from which a row is cut into pieces
constexpr int kMaxPieces = 256;   // of one row
// Pieces of a row and their size, by the number of its occurrences alone.
__device__ __forceinline__ int32_t PieceSize(int32_t count) {
  return count <= kHot * kMaxPieces ? kHot : (count + kMaxPieces - 1) / kMaxPieces;
}
__device__ __forceinline__ int32_t Pieces(int32_t count) {
  return count <= kHot ? 0 : (count + PieceSize(count) - 1) / PieceSize(count);
}
// No more pieces than this: a hot row has at most twice as many as its occurrences fill.
int64_t MostPieces(int64_t valid) { return valid / (kHot / 2); }

__global__ void CountPieces(const int32_t* starts, int64_t groups, int32_t* pieces) {
  const int64_t g = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (g <= groups) pieces[g] = g < groups ? Pieces(starts[g + 1] - starts[g]) : 0;
}

// piece_start [groups + 1] -> the group of each piece; -1 beyond the last one.
__global__ void WritePieces(const int32_t* piece_start, int64_t groups, int64_t most, int32_t* piece_group) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < groups) {
    for (int32_t p = piece_start[i]; p < piece_start[i + 1]; ++p) piece_group[p] = static_cast<int32_t>(i);
  }
  if (i < most && i >= piece_start[groups]) piece_group[i] = -1;
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

// One team a row of up to kHot occurrences.
template <typename T, typename Out, int kPack, int kVectors>
__global__ void __launch_bounds__(kThreads)
    SumRows(Occurrences occurrences, const T* grad, int64_t* unique_ids, Out* out, int lanes) {
  constexpr int kRows = (kFlight<kVectors> + 1) / 2;  // most rows occur once or twice: more teams instead
  const int lane = threadIdx.x % lanes;
  const int64_t group = Team(lanes), dim = occurrences.dim;
  const EmbeddingGradPlanCuda& plan = occurrences.plan;
  if (group >= plan.num_unique) return;
  if (lane == 0 && unique_ids != nullptr) unique_ids[group] = plan.unique[group];
  const int32_t begin = plan.starts[group], end = plan.starts[group + 1];
  if (end - begin > kHot) return;
  const int64_t step = int64_t{lanes} * kPack;
  for (int64_t column = lane * kPack; column < dim; column += step * kVectors) {
    Tile<T, kPack, kVectors> tile;
    tile.Clear();
    SumInOrder<kRows>(grad + column, begin, end, 1, step, dim - column, occurrences, &tile);
    tile.Store(out + group * dim + column, step, dim - column);
  }
}

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

template <typename T, int kPack>
__global__ void __launch_bounds__(kThreads) SumPieces(Occurrences occurrences, const T* grad, const int32_t* piece_start,
                                                      const int32_t* piece_group, float* partials, int lanes) {
  const int64_t piece = blockIdx.x;
  const int32_t group = piece_group[piece];
  if (group < 0) return;
  const int32_t* starts = occurrences.plan.starts;
  const int32_t size = PieceSize(starts[group + 1] - starts[group]);
  const int64_t begin = starts[group] + (piece - piece_start[group]) * size;
  const int64_t end = min(begin + size, int64_t{starts[group + 1]});
  const int64_t dim = occurrences.dim;
  SumByBlock<T, kPack>(grad, begin, end, dim, lanes, occurrences,
                       [=](int64_t column, float sum) { partials[piece * dim + column] = sum; });
}

// The block of a row's first piece adds up its pieces.
template <typename T>
__global__ void __launch_bounds__(kThreads) AddPieces(const float* partials, int64_t dim, const int32_t* piece_start,
                                                      const int32_t* piece_group, T* out, int lanes) {
  const int64_t piece = blockIdx.x;
  const int32_t group = piece_group[piece];
  if (group < 0 || piece != piece_start[group]) return;
  const auto source = [dim](int64_t i, int64_t* row, float* factor) {
    *row = i * dim;
    *factor = 1.f;
  };
  SumByBlock<float, 1>(partials, piece, piece_start[group + 1], dim, lanes, source,
                       [=](int64_t column, float sum) { GpuFromFloat(sum, &out[group * dim + column]); });
}

struct ScratchMemory {
  int32_t *piece_start, *piece_group;
  float* partials;
  char* temp;
  size_t temp_bytes = 0;
  int64_t most, bytes;

  ScratchMemory(const EmbeddingGradPlanCuda& plan, int64_t dim, void* scratch) : most(MostPieces(plan.num_valid)) {
    Arena arena(scratch);
    piece_start = arena.Take<int32_t>(plan.num_unique + 1);
    piece_group = arena.Take<int32_t>(most);
    partials = arena.Take<float>(most * dim);
    cub::DeviceScan::ExclusiveSum(nullptr, temp_bytes, piece_start, piece_start, static_cast<int>(plan.num_unique + 1));
    temp = arena.Take<char>(static_cast<int64_t>(temp_bytes));
    bytes = arena.bytes();
  }
};

}  // namespace

int64_t EmbeddingGradScratchCuda(const EmbeddingGradPlanCuda& plan, int64_t dim) {
  return ScratchMemory(plan, dim, nullptr).bytes;
}

template <typename T, typename Out>
int EmbeddingGradRowsCuda(const EmbeddingGradPlanCuda& plan, const T* grad, int64_t dim, void* scratch,
                          int64_t* unique_ids, Out* rows_out, GpuStream stream) {
  if (plan.num_unique == 0) return 0;
  const Occurrences occurrences{plan, dim};
  const bool packs = Packs<T>(dim, grad, rows_out);
  const int error = WithTile<T>(dim, packs, [&](auto pack, auto vectors, int lanes) {
    return Launch(SumRows<T, Out, decltype(pack)::value, decltype(vectors)::value>,
                  BlocksFor(plan.num_unique * lanes), kThreads, 0, stream, occurrences, grad, unique_ids,
                  rows_out, lanes);
  });
  ScratchMemory m(plan, dim, scratch);
  if (error != 0 || plan.num_valid <= kHot || dim == 0) return error;

  LARGEOUT_RETURN_IF_ERROR(Launch(CountPieces, BlocksFor(plan.num_unique + 1), kThreads, 0, stream,
                                  plan.starts, plan.num_unique, m.piece_start));
  LARGEOUT_CUDA_RETURN(cub::DeviceScan::ExclusiveSum(m.temp, m.temp_bytes, m.piece_start, m.piece_start,
                                                     static_cast<int>(plan.num_unique + 1), stream));
  LARGEOUT_RETURN_IF_ERROR(Launch(WritePieces, BlocksFor(std::max(plan.num_unique, m.most)), kThreads, 0,
                                  stream, m.piece_start, plan.num_unique, m.most, m.piece_group));
  const unsigned blocks = static_cast<unsigned>(m.most);
  if (packs) {
    constexpr int kFull = 16 / sizeof(T);
    LARGEOUT_RETURN_IF_ERROR(Launch(SumPieces<T, kFull>, blocks, kThreads, 0, stream, occurrences, grad,
                                    m.piece_start, m.piece_group, m.partials, TeamLanes(dim / kFull)));
  } else {
    LARGEOUT_RETURN_IF_ERROR(Launch(SumPieces<T, 1>, blocks, kThreads, 0, stream, occurrences, grad,
                                    m.piece_start, m.piece_group, m.partials, TeamLanes(dim)));
  }
  return Launch(AddPieces<Out>, blocks, kThreads, 0, stream, m.partials, dim, m.piece_start, m.piece_group,
                rows_out, TeamLanes(dim));
}

#define LARGEOUT_INSTANTIATE(T, Out)                                                                        \
  template int EmbeddingGradRowsCuda<T, Out>(const EmbeddingGradPlanCuda&, const T*, int64_t, void*, int64_t*, \
                                             Out*, GpuStream);
LARGEOUT_INSTANTIATE(float, float)
LARGEOUT_INSTANTIATE(bfloat16, bfloat16)
LARGEOUT_INSTANTIATE(bfloat16, float)
#undef LARGEOUT_INSTANTIATE

}  // namespace largeout
