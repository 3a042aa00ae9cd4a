// The gradient of the table from its plan (embedding_group.cu): every row is the sum of its occurrences.
#include <cub/device/device_scan.cuh>
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "embedding/cuda/embedding_sums.cuh"

namespace largeout {
namespace {

// No more pieces than this: a hot row has at most twice as many as its occurrences fill.
int64_t MostPieces(int64_t valid) { return valid / (kHot / 2); }

// pieces [most + 1]
__global__ void CountPieces(EmbeddingGradPlanCuda plan, int32_t* pieces) {
  const int64_t g = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (g <= plan.most_unique) pieces[g] = g < plan.counts->unique ? Pieces(plan.starts[g + 1] - plan.starts[g]) : 0;
}

// piece_start [groups + 1] -> the group of each piece; -1 beyond the last one.
__global__ void WritePieces(const int32_t* piece_start, int64_t groups, int64_t most, int32_t* piece_group) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < groups) {
    for (int32_t p = piece_start[i]; p < piece_start[i + 1]; ++p) piece_group[p] = static_cast<int32_t>(i);
  }
  if (i < most && i >= piece_start[groups]) piece_group[i] = -1;
}

// A team goes through a batch of rows of up to kHot occurrences.
template <typename T, int kPack, int kVectors>
__global__ void __launch_bounds__(kThreads, kPack > 4 || kVectors > 2 ? 2 : 3)
    SumRows(Occurrences occurrences, int64_t dim, const T* grad, int64_t* unique_ids, T* out, int lane_count,
            int64_t teams) {
  using OneTile = Tile<T, kPack, kVectors>;
  constexpr int kFlying = (kFlight<kVectors> + 1) / 2;
  struct Unit {
    typename OneTile::Piece first[kVectors];  // occurrence
  };
  const Lanes lanes(lane_count);
  const int64_t team = Team(lane_count), unique = occurrences.plan.counts->unique;
  if (team >= teams || team >= unique) return;
  const int rows = static_cast<int>((unique - team + teams - 1) / teams);
  const bool exists = lanes.own < rows;
  const OwnRow own(occurrences, team + lanes.own * teams, exists);
  if (exists && unique_ids != nullptr) unique_ids[team + lanes.own * teams] = own.id;
  const int64_t step = int64_t{lanes.count} * kPack;
  for (int64_t c0 = 0; c0 < dim; c0 += step * kVectors) {
    const int64_t column = c0 + lanes.own * kPack, left = dim - column;
    const auto load = [&](int r, Unit* unit) {
      if (lanes.From(own.count, r) > 0)
        OneTile::Load(grad + lanes.From(own.bag, r) * dim + column, step, left, unit->first);
    };
    const auto use = [&](int r, const Unit& unit) {
      const int32_t count = lanes.From(own.count, r), begin = lanes.From(own.begin, r);
      if (count == 0) return;
      OneTile tile;
      tile.Clear();
      tile.Add(lanes.From(own.factor, r), step, left, unit.first);
      SumInOrder<kFlying>(lanes, grad + column, begin + 1, begin + count, 1, dim, step, left, occurrences,
                          &tile);
      tile.Store(out + (team + r * teams) * dim + column, step, left);
    };
    InTurn<Unit>(rows, load, use);
  }
}

template <typename T, int kPack>
__global__ void __launch_bounds__(kThreads, kPack > 4 ? 2 : 3)
    SumPieces(Occurrences occurrences, int64_t dim, const T* grad, const int32_t* piece_start,
              const int32_t* piece_group, float* partials, int lanes) {
  const int64_t piece = blockIdx.x;
  const int32_t group = piece_group[piece];
  if (group < 0) return;
  const int32_t* starts = occurrences.plan.starts;
  const int32_t size = PieceSize(starts[group + 1] - starts[group]);
  const int32_t begin = starts[group] + static_cast<int32_t>(piece - piece_start[group]) * size;
  const int32_t end = min(begin + size, starts[group + 1]);
  SumByBlock<T, kPack>(grad, begin, end, dim, lanes, occurrences,
                       [=](int64_t column, float sum) { partials[piece * dim + column] = sum; });
}

// The block of a row's first piece adds up its pieces.
template <typename T>
__global__ void __launch_bounds__(kThreads) AddPieces(const float* partials, int64_t dim, const int32_t* piece_start,
                                                      const int32_t* piece_group, T* out, int lanes) {
  const int32_t piece = blockIdx.x, group = piece_group[piece];
  if (group < 0 || piece != piece_start[group]) return;
  const auto source = [](int32_t i, int32_t* row, float* factor) {
    *row = i;
    *factor = 1.f;
  };
  SumByBlock<float, 1>(partials, piece, piece_start[group + 1], dim, lanes, source,
                       [=](int64_t column, float sum) { GpuFromFloat(sum, &out[group * dim + column]); });
}

}  // namespace

template <typename T>
int SumHotPiecesCuda(const EmbeddingGradPlanCuda& plan, const T* grad, int64_t dim, const GpuCall& call,
                     HotPieces* hot) {
  *hot = HotPieces();
  if (plan.most_valid <= kHot || dim == 0) return 0;
  const GpuStream stream = call.stream;
  const int64_t most = MostPieces(plan.most_valid);
  const int starts = static_cast<int>(plan.most_unique + 1);
  Arena arena(call.scratch);
  int32_t *piece_start = arena.Take<int32_t>(starts), *piece_group = arena.Take<int32_t>(most);
  float* partials = arena.Take<float>(most * dim);
  size_t temp_bytes = 0;
  LARGEOUT_CUDA_RETURN(cub::DeviceScan::ExclusiveSum(nullptr, temp_bytes, piece_start, piece_start, starts));
  char* temp = arena.Take<char>(static_cast<int64_t>(temp_bytes));
  LARGEOUT_RETURN_IF_ERROR(arena.error());
  *hot = {most, piece_start, piece_group, partials};
  LARGEOUT_RETURN_IF_ERROR(Launch(CountPieces, BlocksFor(starts), kThreads, 0, stream, plan, piece_start));
  LARGEOUT_CUDA_RETURN(
      cub::DeviceScan::ExclusiveSum(temp, temp_bytes, piece_start, piece_start, starts, stream));
  LARGEOUT_RETURN_IF_ERROR(Launch(WritePieces, BlocksFor(std::max(plan.most_unique, most)), kThreads, 0,
                                  stream, piece_start, plan.most_unique, most, piece_group));
  const Occurrences occurrences{plan};
  const bool packs = Packs<T>(dim, grad, grad);
  constexpr int kFull = 16 / sizeof(T);
  return Launch(packs ? SumPieces<T, kFull> : SumPieces<T, 1>, static_cast<unsigned>(most), kThreads, 0,
                stream, occurrences, dim, grad, piece_start, piece_group, partials,
                TeamLanes(packs ? dim / kFull : dim));
}

template <>
template <typename T>
int EmbeddingGpu::GradRows(const T* grad, int64_t dim, int64_t* unique_ids, T* rows_out) {
  if (plan_.most_unique == 0) return 0;
  const Occurrences occurrences{plan_};
  LARGEOUT_RETURN_IF_ERROR(
      WithTile<T>(dim, Packs<T>(dim, grad, rows_out), [&](auto pack, auto vectors, int lanes) {
        const int64_t teams = TeamsOf(plan_.most_unique, lanes);
        return Launch(SumRows<T, decltype(pack)::value, decltype(vectors)::value>, BlocksFor(teams * lanes),
                      kThreads, 0, call_.stream, occurrences, dim, grad, unique_ids, rows_out, lanes, teams);
      }));
  HotPieces hot;
  LARGEOUT_RETURN_IF_ERROR(SumHotPiecesCuda(plan_, grad, dim, call_, &hot));
  if (hot.most == 0) return 0;
  return Launch(AddPieces<T>, static_cast<unsigned>(hot.most), kThreads, 0, call_.stream, hot.partials, dim,
                hot.piece_start, hot.piece_group, rows_out, TeamLanes(dim));
}

#define LARGEOUT_INSTANTIATE(T)                                                                     \
  template int EmbeddingGpu::GradRows<T>(const T*, int64_t, int64_t*, T*);                          \
  template int SumHotPiecesCuda<T>(const EmbeddingGradPlanCuda&, const T*, int64_t, const GpuCall&, \
                                   HotPieces*);
LARGEOUT_INSTANTIATE(float)
LARGEOUT_INSTANTIATE(bfloat16)
#undef LARGEOUT_INSTANTIATE

}  // namespace largeout
