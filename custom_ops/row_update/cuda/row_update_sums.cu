// Steps by gradients that are summed first. Bound by the traffic of rows and slots; sums never leave the chip, but for
// those of rows that occur more than kHot times: blocks sum their pieces, and one of them adds these up and takes the step.
#include "common/cuda/launch.cuh"
#include "embedding/cuda/embedding_sums.cuh"
#include "row_update/cuda/row_update_step.cuh"
#include "row_update/cuda/row_update_sums.h"

namespace largeout {
namespace {

// A team goes through a batch of rows of up to kHot occurrences.
template <typename RuleT, typename T, typename G, int kPack>
__global__ void __launch_bounds__(kThreads, kPack > 4 || RuleT::kSlots > 1 ? 2 : 3)
    StepRows(Occurrences occurrences, const G* grad, bool round, TableStep<T> step, const IndexCheck* check,
             int lane_count, int64_t teams) {
  using OneTile = Tile<G, kPack, 1>;
  struct Unit {
    typename OneTile::Piece first[1];  // occurrence
    RowColumns<RuleT, T, kPack> columns;
  };
  const Lanes lanes(lane_count);
  const int64_t team = Team(lane_count), dim = step.dim, stride = int64_t{lanes.count} * kPack;
  const int64_t unique = occurrences.plan.counts->unique;
  if (team >= teams || team >= unique || (check != nullptr && check->bad != kNoBadIndex)) return;
  const int rows = static_cast<int>((unique - team + teams - 1) / teams);
  const bool exists = lanes.own < rows;
  const OwnRow own(occurrences, team + lanes.own * teams, exists);
  RuleT rule(step.hyper);
  const gpu::Rounding<T> rounding(step.rounding);
  const uint32_t own_rounding = own.count > 0 ? rounding.OfRow(own.id) : 0;
  const auto load_first = [&](int r, int64_t column, typename OneTile::Piece(&piece)[1]) {
    OneTile::Load(grad + lanes.From(own.bag, r) * dim + column, stride, dim - column, piece);
  };
  // The gradient of columns of row r of the batch, whose first occurrence is in `piece`.
  const auto sum = [&](int r, int64_t column, const typename OneTile::Piece(&piece)[1], float (&g)[kPack]) {
    const int64_t left = dim - column;
    OneTile tile;
    tile.Clear();
    tile.Add(lanes.From(own.factor, r), stride, left, piece);
    const int32_t begin = lanes.From(own.begin, r), end = begin + lanes.From(own.count, r);
    SumInOrder<4>(lanes, grad + column, begin + 1, end, 1, dim, stride, left, occurrences, &tile);
#pragma unroll
    for (int i = 0; i < kPack; ++i) g[i] = round ? RoundTo(tile.sum[0][i], step.table) : tile.sum[0][i];
  };
  // Row-wise: the accumulator of the lane's own row, and what the squares of the lanes make of that of row r.
  const float accumulated = kRowWise<RuleT> && own.count > 0 ? step.slots[0][own.id] : 0.f;
  const auto accumulate = [&](int r, float squares) {
    for (int distance = lanes.count / 2; distance > 0; distance /= 2) {
      squares += __shfl_xor_sync(lanes.mask, squares, distance, lanes.count);
    }
    const float total = Accumulated(step, lanes.From(accumulated, r), squares);
    if (lanes.own == r) step.slots[0][own.id] = total;
    return total;
  };
  const bool one_pass = dim <= stride;
  float own_root = 0.f;
  if constexpr (kRowWise<RuleT>) {
    for (int r = 0; !one_pass && r < rows; ++r) {
      if (lanes.From(own.count, r) == 0) continue;
      float squares = 0.f, g[kPack];
      for (int64_t c0 = 0; c0 < dim; c0 += stride) {
        typename OneTile::Piece piece[1];
        load_first(r, c0 + lanes.own * kPack, piece);
        sum(r, c0 + lanes.own * kPack, piece, g);
#pragma unroll
        for (int i = 0; i < kPack; ++i) squares += g[i] * g[i];
      }
      const float total = accumulate(r, squares);
      if (lanes.own == r) own_root = sqrtf(total + rule.epsilon);
    }
  }
  for (int64_t c0 = 0; c0 < dim; c0 += stride) {
    const int64_t column = c0 + lanes.own * kPack;
    const auto load = [&](int r, Unit* unit) {
      if (lanes.From(own.count, r) == 0) return;
      load_first(r, column, unit->first);
      const int64_t at = lanes.From(own.id, r) * dim + column;
      if (column < dim) unit->columns.Load(step, at);
    };
    const auto use = [&](int r, Unit& unit) {
      if (lanes.From(own.count, r) == 0) return;
      float g[kPack];
      sum(r, column, unit.first, g);
      if constexpr (kRowWise<RuleT>) {
        float squares = 0.f;
#pragma unroll
        for (int i = 0; i < kPack; ++i) squares += g[i] * g[i];
        rule.root = one_pass ? sqrtf(accumulate(r, squares) + rule.epsilon) : lanes.From(own_root, r);
      }
      const int64_t at = lanes.From(own.id, r) * dim + column;
      const uint32_t of_row = lanes.From(own_rounding, r);
      if (column >= dim) return;
      unit.columns.Take(rule, g, rounding, of_row, column);
      unit.columns.Store(step, at);
    };
    InTurn<Unit>(rows, load, use);
  }
}

// The block of a row's first piece adds up its pieces, in the place of the first one, and takes the step.
template <typename RuleT, typename T>
__global__ void __launch_bounds__(kThreads)
    StepHotRows(EmbeddingGradPlanCuda plan, HotPieces hot, bool round, TableStep<T> step,
                const IndexCheck* check, int lanes) {
  __shared__ float shared[kThreads];
  const int64_t dim = step.dim;
  const int32_t slot = blockIdx.x;
  const HotPiece piece = HotPiece::Of(plan, slot);
  if (piece.group < 0 || slot != piece.first || (check != nullptr && check->bad != kNoBadIndex)) return;
  const int64_t row = plan.unique[piece.group];
  float* sums = hot.partials + slot * dim;
  const auto source = [](int32_t i, int32_t* row, float* factor) {
    *row = i;
    *factor = 1.f;
  };
  SumByBlock<float, 1>(hot.partials, slot, slot + piece.count, dim, lanes, source,
                       [=](int64_t column, float sum) { sums[column] = round ? RoundTo(sum, step.table) : sum; });
  RuleT rule(step.hyper);
  if constexpr (kRowWise<RuleT>) {
    float squares = 0.f;
    for (int64_t column = threadIdx.x; column < dim; column += kThreads) squares += sums[column] * sums[column];
    shared[threadIdx.x] = squares;
    __syncthreads();
    for (int width = kThreads / 2; width > 0; width /= 2) {
      if (static_cast<int>(threadIdx.x) < width) shared[threadIdx.x] += shared[threadIdx.x + width];
      __syncthreads();
    }
    const float total = Accumulated(step, step.slots[0][row], shared[0]);
    __syncthreads();  // all threads have read the accumulator
    if (threadIdx.x == 0) step.slots[0][row] = total;
    rule.root = sqrtf(total + rule.epsilon);
  }
  const gpu::Rounding<T> rounding(step.rounding);
  const uint32_t of_row = rounding.OfRow(row);
  for (int64_t column = threadIdx.x; column < dim; column += kThreads) {
    const float g[1] = {sums[column]};
    RowColumns<RuleT, T, 1> columns;
    columns.Load(step, row * dim + column);
    columns.Take(rule, g, rounding, of_row, column);
    columns.Store(step, row * dim + column);
  }
}

template <typename RuleT, typename T, typename G>
int StepWith(const EmbeddingGradPlanCuda& plan, const G* grad, bool round, const TableStep<T>& step,
             const IndexCheck* check, const HotPieces& hot, GpuStream stream) {
  const Occurrences occurrences{plan};
  constexpr int kFull = 16 / (sizeof(T) > sizeof(G) ? sizeof(T) : sizeof(G));
  bool packs = step.dim % kFull == 0 && Aligned16(grad) && Aligned16(step.table);
  for (int m = 0; m < RuleT::kSlots; ++m) packs = packs && Aligned16(step.slots[m]);
  const int lanes = TeamLanes(packs ? step.dim / kFull : step.dim);
  const int64_t teams = TeamsOf(plan.most_unique, lanes);
  LARGEOUT_RETURN_IF_ERROR(Launch(packs ? StepRows<RuleT, T, G, kFull> : StepRows<RuleT, T, G, 1>,
                                  BlocksFor(teams * lanes), kThreads, 0, stream, occurrences, grad, round,
                                  step, check, lanes, teams));
  if (hot.slots == 0) return 0;
  return Launch(StepHotRows<RuleT, T>, static_cast<unsigned>(hot.slots), kThreads, 0, stream, plan, hot,
                round, step, check, TeamLanes(step.dim));
}

}  // namespace

template <typename T, typename G>
int SumAndStepCuda(const EmbeddingGradPlanCuda& plan, const G* grad, bool round, UpdateRule rule, T* table,
                   int64_t dim, float* const* slots, const StepNumbers& numbers, const IndexCheck* check,
                   const GpuCall& call) {
  if (plan.most_unique == 0 || dim == 0) return 0;
  TableStep<T> step = {table, {}, numbers.hyper, numbers.rounding, dim};
  for (int k = 0; k < kUpdateRuleInfo[static_cast<int>(rule)].slots; ++k) step.slots[k] = slots[k];
  HotPieces hot;
  LARGEOUT_RETURN_IF_ERROR(SumHotPiecesCuda(plan, grad, dim, call, &hot));
  // With one column, a slot of a row is one of an element.
  if (dim == 1 && rule == UpdateRule::kRowWiseAdagrad) rule = UpdateRule::kAdagrad;
  switch (rule) {
    case UpdateRule::kSgd:
      return StepWith<gpu::Sgd>(plan, grad, round, step, check, hot, call.stream);
    case UpdateRule::kMomentum:
      return StepWith<gpu::Momentum>(plan, grad, round, step, check, hot, call.stream);
    case UpdateRule::kNesterov:
      return StepWith<gpu::Nesterov>(plan, grad, round, step, check, hot, call.stream);
    case UpdateRule::kAdagrad:
      return StepWith<gpu::Adagrad>(plan, grad, round, step, check, hot, call.stream);
    case UpdateRule::kRowWiseAdagrad:
      return StepWith<gpu::RowWiseAdagrad>(plan, grad, round, step, check, hot, call.stream);
    case UpdateRule::kLazyAdam:
      return StepWith<gpu::LazyAdam>(plan, grad, round, step, check, hot, call.stream);
    case UpdateRule::kFtrl:
      return StepWith<gpu::Ftrl>(plan, grad, round, step, check, hot, call.stream);
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

#define LARGEOUT_INSTANTIATE(T, G)                                                                         \
  template int SumAndStepCuda<T, G>(const EmbeddingGradPlanCuda&, const G*, bool, UpdateRule, T*, int64_t, \
                                    float* const*, const StepNumbers&, const IndexCheck*, const GpuCall&);
LARGEOUT_INSTANTIATE(float, float)
LARGEOUT_INSTANTIATE(float, bfloat16)
LARGEOUT_INSTANTIATE(bfloat16, float)
LARGEOUT_INSTANTIATE(bfloat16, bfloat16)
#undef LARGEOUT_INSTANTIATE

}  // namespace largeout
