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
template <typename T, typename Out, int kPack, int kVectors>
__global__ void __launch_bounds__(kThreads, kPack > 4 || kVectors > 2 ? 2 : 3)
    SumRows(Occurrences occurrences, int64_t dim, const T* grad, int64_t* unique_ids, Out* out,
            int lane_count, int64_t teams) {
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

struct ScratchMemory {
  int32_t *piece_start, *piece_group;
  float* partials;
  char* temp;
  size_t temp_bytes = 0;
  int64_t most, bytes;

  ScratchMemory(const EmbeddingGradPlanCuda& plan, int64_t dim, void* scratch) : most(MostPieces(plan.most_valid)) {
    Arena arena(scratch);
    piece_start = arena.Take<int32_t>(plan.most_unique + 1);
    piece_group = arena.Take<int32_t>(most);
    partials = arena.Take<float>(most * dim);
    cub::DeviceScan::ExclusiveSum(nullptr, temp_bytes, piece_start, piece_start,
                                  static_cast<int>(plan.most_unique + 1));
    temp = arena.Take<char>(static_cast<int64_t>(temp_bytes));
    bytes = arena.bytes();
  }
};

}  // namespace

int64_t EmbeddingGradScratchCuda(const EmbeddingGradPlanCuda& plan, int64_t dim) {
  return ScratchMemory(plan, dim, nullptr).bytes;
}

template <typename T>
int SumHotPiecesCuda(const EmbeddingGradPlanCuda& plan, const T* grad, int64_t dim, void* scratch, GpuStream stream,
                     HotPieces* hot) {
  *hot = HotPieces();
  if (plan.most_valid <= kHot || dim == 0) return 0;
  const ScratchMemory m(plan, dim, scratch);
  *hot = {m.most, m.piece_start, m.piece_group, m.partials};
  LARGEOUT_RETURN_IF_ERROR(
      Launch(CountPieces, BlocksFor(plan.most_unique + 1), kThreads, 0, stream, plan, m.piece_start));
  size_t temp_bytes = m.temp_bytes;
  LARGEOUT_CUDA_RETURN(cub::DeviceScan::ExclusiveSum(m.temp, temp_bytes, m.piece_start, m.piece_start,
                                                     static_cast<int>(plan.most_unique + 1), stream));
  LARGEOUT_RETURN_IF_ERROR(Launch(WritePieces, BlocksFor(std::max(plan.most_unique, m.most)), kThreads, 0, stream,
                                  m.piece_start, plan.most_unique, m.most, m.piece_group));
  const Occurrences occurrences{plan};
  const bool packs = Packs<T>(dim, grad, grad);
  constexpr int kFull = 16 / sizeof(T);
  return Launch(packs ? SumPieces<T, kFull> : SumPieces<T, 1>, static_cast<unsigned>(m.most), kThreads, 0,
                stream, occurrences, dim, grad, m.piece_start, m.piece_group, m.partials,
                TeamLanes(packs ? dim / kFull : dim));
}

template <typename T, typename Out>
int EmbeddingGradRowsCuda(const EmbeddingGradPlanCuda& plan, const T* grad, int64_t dim, void* scratch,
                          int64_t* unique_ids, Out* rows_out, GpuStream stream) {
  if (plan.most_unique == 0) return 0;
  const Occurrences occurrences{plan};
  LARGEOUT_RETURN_IF_ERROR(
      WithTile<T>(dim, Packs<T>(dim, grad, rows_out), [&](auto pack, auto vectors, int lanes) {
        const int64_t teams = TeamsOf(plan.most_unique, lanes);
        return Launch(SumRows<T, Out, decltype(pack)::value, decltype(vectors)::value>,
                      BlocksFor(teams * lanes), kThreads, 0, stream, occurrences, dim, grad, unique_ids,
                      rows_out, lanes, teams);
      }));
  HotPieces hot;
  LARGEOUT_RETURN_IF_ERROR(SumHotPiecesCuda(plan, grad, dim, scratch, stream, &hot));
  if (hot.most == 0) return 0;
  return Launch(AddPieces<Out>, static_cast<unsigned>(hot.most), kThreads, 0, stream, hot.partials, dim,
                hot.piece_start, hot.piece_group, rows_out, TeamLanes(dim));
}

#define LARGEOUT_INSTANTIATE(T, Out)                                                                        \
  template int EmbeddingGradRowsCuda<T, Out>(const EmbeddingGradPlanCuda&, const T*, int64_t, void*, int64_t*, \
                                             Out*, GpuStream);
LARGEOUT_INSTANTIATE(float, float)
LARGEOUT_INSTANTIATE(bfloat16, bfloat16)
LARGEOUT_INSTANTIATE(bfloat16, float)
#undef LARGEOUT_INSTANTIATE
template int SumHotPiecesCuda<float>(const EmbeddingGradPlanCuda&, const float*, int64_t, void*, GpuStream, HotPieces*);
template int SumHotPiecesCuda<bfloat16>(const EmbeddingGradPlanCuda&, const bfloat16*, int64_t, void*, GpuStream,
                                        HotPieces*);

}  // namespace largeout
