// Steps by gradients that are summed first. Bound by the traffic of rows and slots; sums never leave the chip, but for
// those of rows that occur more than kHot times: blocks sum their pieces, and one of them adds these up and takes the step.
#include "common/cuda/launch.cuh"
#include "embedding/cuda/embedding_sums.cuh"
#include "row_update/cuda/row_update_cuda.h"
#include "row_update/cuda/row_update_step.cuh"

namespace largeout {
namespace {

// What a sum that was written as T would be.
__device__ __forceinline__ float RoundTo(float x, const float*) { return x; }
__device__ __forceinline__ float RoundTo(float x, const bfloat16*) {
  bfloat16 rounded;
  GpuFromFloat(x, &rounded);
  return GpuToFloat(rounded);
}

// One team a row of up to kHot occurrences.
template <typename RuleT, typename T, typename G, int kPack>
__global__ void __launch_bounds__(kThreads)
    StepRows(Occurrences occurrences, const G* grad, bool round, TableStep<T> step, const IndexCheck* check, int lanes) {
  constexpr int kRows = (kFlight<1> + 1) / 2;
  const int lane = threadIdx.x % lanes;
  const int64_t group = Team(lanes), dim = step.dim, stride = int64_t{lanes} * kPack;
  const EmbeddingGradPlanCuda& plan = occurrences.plan;
  int32_t begin = 0, end = 0;
  const bool all_good = check == nullptr || check->bad == kNoBadIndex;
  if (all_good && group < plan.counts->unique) begin = plan.starts[group], end = plan.starts[group + 1];
  const bool takes = begin < end && end - begin <= kHot;  // all lanes stay: they may shuffle
  const int64_t row = takes ? plan.unique[group] : 0;
  float g[kPack];
  const auto sum = [&](int64_t column) {
    Tile<G, kPack, 1> tile;
    tile.Clear();
    SumInOrder<kRows>(grad + column, begin, end, 1, stride, dim - column, occurrences, &tile);
#pragma unroll
    for (int i = 0; i < kPack; ++i) g[i] = round ? RoundTo(tile.sum[0][i], step.table) : tile.sum[0][i];
  };
  RuleT rule(step.hyper);
  if constexpr (kRowWise<RuleT>) {
    float squares = 0.f;
    for (int64_t column = lane * kPack; takes && column < dim; column += stride) {
      sum(column);
#pragma unroll
      for (int i = 0; i < kPack; ++i) squares += g[i] * g[i];
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      squares += __shfl_xor_sync(0xffffffffu, squares, distance);
    }
    const float total = takes ? Accumulated(step, row, squares) : 0.f;
    __syncwarp();  // all lanes have read the accumulator
    if (takes && lane == 0) step.slots[0][row] = total;
    rule.root = sqrtf(total + rule.epsilon);
  }
  for (int64_t column = lane * kPack; takes && column < dim; column += stride) {
    if (!kRowWise<RuleT> || dim > stride) sum(column);  // otherwise g is what it was
    StepColumns<RuleT, T, kPack>(rule, step, row, column, g);
  }
}

// The block of a row's first piece adds up its pieces, in the place of the first one, and takes the step.
template <typename RuleT, typename T>
__global__ void __launch_bounds__(kThreads)
    StepHotRows(const int64_t* unique, HotPieces hot, bool round, TableStep<T> step, const IndexCheck* check,
                int lanes) {
  __shared__ float shared[kThreads];
  const int64_t piece = blockIdx.x, dim = step.dim;
  const int32_t group = hot.piece_group[piece];
  if (group < 0 || piece != hot.piece_start[group] || (check != nullptr && check->bad != kNoBadIndex)) return;
  const int64_t row = unique[group];
  float* sums = hot.partials + piece * dim;
  const auto source = [dim](int64_t i, int64_t* offset, float* factor) {
    *offset = i * dim;
    *factor = 1.f;
  };
  SumByBlock<float, 1>(hot.partials, piece, hot.piece_start[group + 1], dim, lanes, source,
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
    const float total = Accumulated(step, row, shared[0]);
    __syncthreads();  // all threads have read the accumulator
    if (threadIdx.x == 0) step.slots[0][row] = total;
    rule.root = sqrtf(total + rule.epsilon);
  }
  for (int64_t column = threadIdx.x; column < dim; column += kThreads) {
    const float g[1] = {sums[column]};
    StepColumns<RuleT, T, 1>(rule, step, row, column, g);
  }
}

template <typename RuleT, typename T, typename G>
int StepWith(const EmbeddingGradPlanCuda& plan, const G* grad, bool round, const TableStep<T>& step,
             const IndexCheck* check, const HotPieces& hot, GpuStream stream) {
  const Occurrences occurrences{plan, step.dim};
  constexpr int kFull = 16 / (sizeof(T) > sizeof(G) ? sizeof(T) : sizeof(G));
  bool packs = step.dim % kFull == 0 && Aligned16(grad) && Aligned16(step.table);
  for (int m = 0; m < RuleT::kSlots; ++m) packs = packs && Aligned16(step.slots[m]);
  const int lanes = TeamLanes(packs ? step.dim / kFull : step.dim);
  LARGEOUT_RETURN_IF_ERROR(Launch(packs ? StepRows<RuleT, T, G, kFull> : StepRows<RuleT, T, G, 1>,
                                  BlocksFor(plan.most_unique * lanes), kThreads, 0, stream, occurrences, grad, round,
                                  step, check, lanes));
  if (hot.most == 0) return 0;
  return Launch(StepHotRows<RuleT, T>, static_cast<unsigned>(hot.most), kThreads, 0, stream, plan.unique, hot, round,
                step, check, TeamLanes(step.dim));
}

}  // namespace

template <typename T, typename G>
int SumAndStepCuda(const EmbeddingGradPlanCuda& plan, const G* grad, bool round, UpdateRule rule, T* table, int64_t dim,
                   float* const* slots, const float* hyper, const IndexCheck* check, void* scratch, GpuStream stream) {
  if (plan.most_unique == 0 || dim == 0) return 0;
  TableStep<T> step = {table, {}, hyper, dim};
  for (int k = 0; k < kUpdateRuleInfo[static_cast<int>(rule)].slots; ++k) step.slots[k] = slots[k];
  HotPieces hot;
  LARGEOUT_RETURN_IF_ERROR(SumHotPiecesCuda(plan, grad, dim, scratch, stream, &hot));
  // With one column, a slot of a row is one of an element.
  if (dim == 1 && rule == UpdateRule::kRowWiseAdagrad) rule = UpdateRule::kAdagrad;
  switch (rule) {
    case UpdateRule::kSgd:
      return StepWith<gpu::Sgd>(plan, grad, round, step, check, hot, stream);
    case UpdateRule::kMomentum:
      return StepWith<gpu::Momentum>(plan, grad, round, step, check, hot, stream);
    case UpdateRule::kNesterov:
      return StepWith<gpu::Nesterov>(plan, grad, round, step, check, hot, stream);
    case UpdateRule::kAdagrad:
      return StepWith<gpu::Adagrad>(plan, grad, round, step, check, hot, stream);
    case UpdateRule::kRowWiseAdagrad:
      return StepWith<gpu::RowWiseAdagrad>(plan, grad, round, step, check, hot, stream);
    case UpdateRule::kLazyAdam:
      return StepWith<gpu::LazyAdam>(plan, grad, round, step, check, hot, stream);
    case UpdateRule::kFtrl:
      return StepWith<gpu::Ftrl>(plan, grad, round, step, check, hot, stream);
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

#define LARGEOUT_INSTANTIATE(T, G)                                                                               \
  template int SumAndStepCuda<T, G>(const EmbeddingGradPlanCuda&, const G*, bool, UpdateRule, T*, int64_t,       \
                                    float* const*, const float*, const IndexCheck*, void*, GpuStream);
LARGEOUT_INSTANTIATE(float, float)
LARGEOUT_INSTANTIATE(float, bfloat16)
LARGEOUT_INSTANTIATE(bfloat16, float)
LARGEOUT_INSTANTIATE(bfloat16, bfloat16)
#undef LARGEOUT_INSTANTIATE

}  // namespace largeout
