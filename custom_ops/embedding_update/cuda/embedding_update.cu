// Bound by the traffic of rows and slots, as the contract says; sums of gradients never leave the chip, but for those of
// rows that occur more than kHot times: blocks sum their pieces, and one of them adds these up and takes the step.
#include "common/cuda/launch.cuh"
#include "embedding/cuda/embedding_sums.cuh"
#include "embedding_update/cuda/embedding_update_cuda.h"
#include "embedding_update/cuda/embedding_update_step.cuh"

namespace largeout {
namespace {

// One team a row of up to kHot occurrences.
template <typename RuleT, typename T, int kPack>
__global__ void __launch_bounds__(kThreads)
    StepRows(Occurrences occurrences, const T* grad, TableStep<T> step, int lanes) {
  constexpr int kRows = (kFlight<1> + 1) / 2;
  const int lane = threadIdx.x % lanes;
  const int64_t group = Team(lanes), dim = step.dim, stride = int64_t{lanes} * kPack;
  const EmbeddingGradPlanCuda& plan = occurrences.plan;
  int32_t begin = 0, end = 0;
  if (group < plan.counts->unique) begin = plan.starts[group], end = plan.starts[group + 1];
  const bool takes = begin < end && end - begin <= kHot;  // all lanes stay: they may shuffle
  const int64_t row = takes ? plan.unique[group] : 0;
  float g[kPack];
  const auto sum = [&](int64_t column) {
    Tile<T, kPack, 1> tile;
    tile.Clear();
    SumInOrder<kRows>(grad + column, begin, end, 1, stride, dim - column, occurrences, &tile);
#pragma unroll
    for (int i = 0; i < kPack; ++i) g[i] = RoundTo(tile.sum[0][i], grad);
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
    StepHotRows(const int64_t* unique, HotPieces hot, TableStep<T> step, int lanes) {
  __shared__ float shared[kThreads];
  const int64_t piece = blockIdx.x, dim = step.dim;
  const int32_t group = hot.piece_group[piece];
  if (group < 0 || piece != hot.piece_start[group]) return;
  const int64_t row = unique[group];
  float* sums = hot.partials + piece * dim;
  const auto source = [dim](int64_t i, int64_t* offset, float* factor) {
    *offset = i * dim;
    *factor = 1.f;
  };
  SumByBlock<float, 1>(hot.partials, piece, hot.piece_start[group + 1], dim, lanes, source,
                       [=](int64_t column, float sum) { sums[column] = RoundTo(sum, step.table); });
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

template <typename RuleT, typename T>
int StepWith(const EmbeddingGradPlanCuda& plan, const T* grad, const TableStep<T>& step, const HotPieces& hot,
             GpuStream stream) {
  const Occurrences occurrences{plan, step.dim};
  constexpr int kFull = 16 / sizeof(T);
  bool packs = Packs<T>(step.dim, grad, step.table);
  for (int m = 0; m < RuleT::kSlots; ++m) packs = packs && Aligned16(step.slots[m]);
  const int lanes = TeamLanes(packs ? step.dim / kFull : step.dim);
  LARGEOUT_RETURN_IF_ERROR(Launch(packs ? StepRows<RuleT, T, kFull> : StepRows<RuleT, T, 1>,
                                  BlocksFor(plan.most_unique * lanes), kThreads, 0, stream, occurrences, grad, step,
                                  lanes));
  if (hot.most == 0) return 0;
  return Launch(StepHotRows<RuleT, T>, static_cast<unsigned>(hot.most), kThreads, 0, stream, plan.unique, hot, step,
                TeamLanes(step.dim));
}

}  // namespace

template <typename T>
int EmbeddingUpdateCuda(const EmbeddingGradPlanCuda& plan, const T* grad, UpdateRule rule, T* table, int64_t dim,
                        float* const* slots, const float* hyper, void* scratch, GpuStream stream) {
  if (plan.most_unique == 0 || dim == 0) return 0;
  TableStep<T> step = {table, {}, hyper, dim};
  for (int k = 0; k < kUpdateRuleInfo[static_cast<int>(rule)].slots; ++k) step.slots[k] = slots[k];
  HotPieces hot;
  LARGEOUT_RETURN_IF_ERROR(SumHotPiecesCuda(plan, grad, dim, scratch, stream, &hot));
  // With one column, a slot of a row is one of an element.
  if (dim == 1 && rule == UpdateRule::kRowWiseAdagrad) rule = UpdateRule::kAdagrad;
  switch (rule) {
    case UpdateRule::kSgd:
      return StepWith<gpu::Sgd>(plan, grad, step, hot, stream);
    case UpdateRule::kMomentum:
      return StepWith<gpu::Momentum>(plan, grad, step, hot, stream);
    case UpdateRule::kNesterov:
      return StepWith<gpu::Nesterov>(plan, grad, step, hot, stream);
    case UpdateRule::kAdagrad:
      return StepWith<gpu::Adagrad>(plan, grad, step, hot, stream);
    case UpdateRule::kRowWiseAdagrad:
      return StepWith<gpu::RowWiseAdagrad>(plan, grad, step, hot, stream);
    case UpdateRule::kLazyAdam:
      return StepWith<gpu::LazyAdam>(plan, grad, step, hot, stream);
    case UpdateRule::kFtrl:
      return StepWith<gpu::Ftrl>(plan, grad, step, hot, stream);
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

template int EmbeddingUpdateCuda<float>(const EmbeddingGradPlanCuda&, const float*, UpdateRule, float*, int64_t,
                                        float* const*, const float*, void*, GpuStream);
template int EmbeddingUpdateCuda<bfloat16>(const EmbeddingGradPlanCuda&, const bfloat16*, UpdateRule, bfloat16*,
                                           int64_t, float* const*, const float*, void*, GpuStream);

}  // namespace largeout
