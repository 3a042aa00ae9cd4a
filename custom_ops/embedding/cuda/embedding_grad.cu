// The gradient of the table from its plan (embedding_group.cu): every row is the sum of its occurrences.
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "embedding/cuda/embedding_sums.cuh"

namespace largeout {
namespace {

// A team goes through a batch of rows of up to kHot occurrences. Without unique_ids, out is of all rows: each
// is at its id.
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
      const int64_t row = unique_ids != nullptr ? team + r * teams : lanes.From(own.id, r);
      tile.Store(out + row * dim + column, step, left);
    };
    InTurn<Unit>(rows, load, use);
  }
}

template <typename T, int kPack>
__global__ void __launch_bounds__(kThreads, kPack > 4 ? 2 : 3)
    SumPieces(Occurrences occurrences, int64_t dim, const T* grad, float* partials, int lanes) {
  const int64_t slot = blockIdx.x;
  const HotPiece piece = HotPiece::Of(occurrences.plan, slot);
  if (piece.group < 0) return;
  const int32_t* starts = occurrences.plan.starts;
  const int32_t size = PieceSize(starts[piece.group + 1] - starts[piece.group]);
  const int32_t begin = starts[piece.group] + static_cast<int32_t>(slot - piece.first) * size;
  const int32_t end = min(begin + size, starts[piece.group + 1]);
  SumByBlock<T, kPack>(grad, begin, end, dim, lanes, occurrences,
                       [=](int64_t column, float sum) { partials[slot * dim + column] = sum; });
}

// The block of a row's first piece adds up its pieces. at_id: out is of all rows.
template <typename T>
__global__ void __launch_bounds__(kThreads) AddPieces(EmbeddingGradPlanCuda plan, const float* partials,
                                                      int64_t dim, bool at_id, T* out, int lanes) {
  const int32_t slot = blockIdx.x;
  const HotPiece piece = HotPiece::Of(plan, slot);
  if (piece.group < 0 || slot != piece.first) return;
  const auto source = [](int32_t i, int32_t* row, float* factor) {
    *row = i;
    *factor = 1.f;
  };
  const int64_t row = at_id ? plan.unique[piece.group] : piece.group;
  SumByBlock<float, 1>(partials, slot, slot + piece.count, dim, lanes, source,
                       [=](int64_t column, float sum) { GpuFromFloat(sum, &out[row * dim + column]); });
}

}  // namespace

template <typename T>
int SumHotPiecesCuda(const EmbeddingGradPlanCuda& plan, const T* grad, int64_t dim, const GpuCall& call,
                     HotPieces* hot) {
  *hot = HotPieces();
  if (plan.most_valid <= kHot || dim == 0) return 0;
  const int64_t slots = (plan.most_valid + kSlot - 1) / kSlot;
  float* partials = call.scratch->Take<float>(slots * dim);
  if (partials == nullptr) return kNoMemory;
  *hot = {slots, partials};
  const Occurrences occurrences{plan};
  const bool packs = Packs<T>(dim, grad, grad);
  constexpr int kFull = 16 / sizeof(T);
  return Launch(packs ? SumPieces<T, kFull> : SumPieces<T, 1>, static_cast<unsigned>(slots), kThreads, 0,
                call.stream, occurrences, dim, grad, partials, TeamLanes(packs ? dim / kFull : dim));
}

namespace {

// unique_ids: null where rows_out is of all rows.
template <typename T>
int SumPlan(const EmbeddingGradPlanCuda& plan, const T* grad, int64_t dim, int64_t* unique_ids, T* rows_out,
            const GpuCall& call) {
  if (plan.most_unique == 0) return 0;
  const Occurrences occurrences{plan};
  LARGEOUT_RETURN_IF_ERROR(
      WithTile<T>(dim, Packs<T>(dim, grad, rows_out), [&](auto pack, auto vectors, int lanes) {
        const int64_t teams = TeamsOf(plan.most_unique, lanes);
        return Launch(SumRows<T, decltype(pack)::value, decltype(vectors)::value>, BlocksFor(teams * lanes),
                      kThreads, 0, call.stream, occurrences, dim, grad, unique_ids, rows_out, lanes, teams);
      }));
  HotPieces hot;
  LARGEOUT_RETURN_IF_ERROR(SumHotPiecesCuda(plan, grad, dim, call, &hot));
  if (hot.slots == 0) return 0;
  return Launch(AddPieces<T>, static_cast<unsigned>(hot.slots), kThreads, 0, call.stream, plan, hot.partials,
                dim, unique_ids == nullptr, rows_out, TeamLanes(dim));
}

}  // namespace

template <>
template <typename T>
int EmbeddingGpu::GradRows(const T* grad, int64_t dim, int64_t* unique_ids, T* rows_out) {
  return SumPlan(plan_, grad, dim, unique_ids, rows_out, call_);
}

template <>
template <typename T, typename Id>
int EmbeddingGpu::GradOfAllRows(const Bags<Id>& bags, Combiner combiner, int64_t rows, const T* grad,
                                int64_t dim, T* rows_out) {
  if (rows * dim == 0) return 0;
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(rows_out, 0, rows * dim * sizeof(T), call_.stream));
  LARGEOUT_RETURN_IF_ERROR(PlanEmbeddingGradCuda(bags, combiner, rows, call_, &plan_));
  return SumPlan(plan_, grad, dim, nullptr, rows_out, call_);
}

#define LARGEOUT_INSTANTIATE_ALL(T, Id)                                                                      \
  template int EmbeddingGpu::GradOfAllRows<T, Id>(const Bags<Id>&, Combiner, int64_t, const T*, int64_t, T*);
LARGEOUT_INSTANTIATE_ALL(float, int32_t)
LARGEOUT_INSTANTIATE_ALL(float, int64_t)
LARGEOUT_INSTANTIATE_ALL(bfloat16, int32_t)
LARGEOUT_INSTANTIATE_ALL(bfloat16, int64_t)
#undef LARGEOUT_INSTANTIATE_ALL
#define LARGEOUT_INSTANTIATE(T)                                                                     \
  template int EmbeddingGpu::GradRows<T>(const T*, int64_t, int64_t*, T*);                          \
  template int SumHotPiecesCuda<T>(const EmbeddingGradPlanCuda&, const T*, int64_t, const GpuCall&, \
                                   HotPieces*);
LARGEOUT_INSTANTIATE(float)
LARGEOUT_INSTANTIATE(bfloat16)
#undef LARGEOUT_INSTANTIATE

}  // namespace largeout
