// Fuses the rule with reading and writing rows and slots: each touched row crosses the memory bus once each way. Bound by
// that traffic: bytes = rows touched x dim x (gradient + 2 x row + 2 x slots). Rows of indices that increase are here, those
// of others are summed first: row_update_sums.cu.
#include <type_traits>

#include "common/cuda/late_report.cuh"
#include "common/cuda/launch.cuh"
#include "row_update/cuda/row_update_rows.cuh"
#include "row_update/cuda/row_update_sums.h"

namespace largeout {
namespace {

// The rules of a finding in a LateReport: an index must be in [0, limit); indices must increase.
enum LateIndexRule { kIndexInRange, kIndicesIncrease };

template <typename Id>
__global__ void LookAtIndices(const Id* indices, int64_t n, int64_t rows, IndexCheck* found) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  bool falls = false;
  if (i < n) {
    const int64_t id = indices[i];
    if (id < 0 || id >= rows) atomicMin(&found->bad, static_cast<unsigned long long>(i));
    falls = i > 0 && indices[i - 1] >= indices[i];
  }
  // One thread of a warp tells, and a flag that is set needs no second one: all of them would stand in line.
  if (__any_sync(0xffffffffu, falls) && threadIdx.x % 32 == 0) atomicExch(&found->increasing, 0);
}

template <typename Id>
__global__ void ReportIndices(const Id* indices, int64_t rows, bool must_increase, const IndexCheck* found,
                              LateFinding* late) {
  if (found->bad != kNoBadIndex) {
    Post(late, kIndexInRange, static_cast<int64_t>(found->bad), static_cast<int64_t>(indices[found->bad]), rows);
  } else if (must_increase && found->increasing == 0) {
    Post(late, kIndicesIncrease, 0, 0, rows);
  }
}

unsigned int Blocks(int64_t threads) {
  return static_cast<unsigned int>((threads + gpu::kThreads - 1) / gpu::kThreads);
}

template <typename RuleT, typename T, typename G>
int UpdateWith(gpu::Task task, bool aligned, GpuStream stream) {
  constexpr int kWidth = 4;  // 16 bytes of float32
  const bool packs = aligned && task.dim % kWidth == 0;
  const int64_t steps = packs ? task.dim / kWidth : task.dim;
  task.group_bits = 0;
  while (task.group_bits < 5 && (int64_t{1} << task.group_bits) < steps) ++task.group_bits;
  const unsigned int blocks = Blocks(task.n << task.group_bits);
  return Launch(packs ? gpu::UpdateRows<RuleT, T, G, kWidth> : gpu::UpdateRows<RuleT, T, G, 1>, blocks,
                gpu::kThreads, 0, stream, task);
}

template <typename T, typename G>
int LaunchRule(UpdateRule rule, const gpu::Task& task, bool aligned, GpuStream stream) {
  switch (rule) {
    case UpdateRule::kSgd:
      return UpdateWith<gpu::Sgd, T, G>(task, aligned, stream);
    case UpdateRule::kMomentum:
      return UpdateWith<gpu::Momentum, T, G>(task, aligned, stream);
    case UpdateRule::kNesterov:
      return UpdateWith<gpu::Nesterov, T, G>(task, aligned, stream);
    case UpdateRule::kAdagrad:
      return UpdateWith<gpu::Adagrad, T, G>(task, aligned, stream);
    case UpdateRule::kRowWiseAdagrad:
      return UpdateWith<gpu::RowWiseAdagrad, T, G>(task, aligned, stream);
    case UpdateRule::kLazyAdam:
      return UpdateWith<gpu::LazyAdam, T, G>(task, aligned, stream);
    case UpdateRule::kFtrl:
      return UpdateWith<gpu::Ftrl, T, G>(task, aligned, stream);
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

// The step of rows `ids` [n], by `values`.
template <typename T, typename G, typename Id>
int UpdateAligned(UpdateRule rule, T* table, int64_t dim, float* const* slots, const Id* ids, int64_t n,
                  const G* values, const StepNumbers& numbers, const IndexCheck* check, GpuStream stream) {
  gpu::Task task = {};
  task.table = table;
  for (int k = 0; k < kUpdateRuleInfo[static_cast<int>(rule)].slots; ++k) task.slots[k] = slots[k];
  task.values = values;
  task.hyper = numbers.hyper;
  task.rounding = numbers.rounding;
  task.check = check;
  task.ids = ids;
  task.n = n;
  task.dim = dim;
  task.wide = sizeof(Id) == 8;
  if (dim == 1 && rule == UpdateRule::kRowWiseAdagrad) rule = UpdateRule::kAdagrad;
  uintptr_t addresses = reinterpret_cast<uintptr_t>(task.table) | reinterpret_cast<uintptr_t>(task.values);
  for (float* slot : task.slots) addresses |= reinterpret_cast<uintptr_t>(slot);
  return LaunchRule<T, G>(rule, task, addresses % 16 == 0, stream);
}

}  // namespace

template <>
template <typename T, typename G, typename Id>
int RowUpdateGpu::Update(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots,
                         const Id* indices, int64_t n, const G* values, const StepNumbers& numbers, BadIndex* bad,
                         bool increasing) {
  LateReport* const late = call_.late;
  const GpuStream stream = call_.stream;
  LateFinding earlier;
  if (late != nullptr && late->Take(&earlier)) {
    *bad = {earlier.position, earlier.value, /*late=*/true, earlier.rule == kIndicesIncrease, earlier.limit};
    return 0;
  }
  *bad = {};
  if (n == 0) return 0;
  IndexCheck* check = call_.scratch->Take<IndexCheck>(1);
  if (check == nullptr) return kNoMemory;
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(check, 0xff, sizeof(IndexCheck), stream));
  LARGEOUT_RETURN_IF_ERROR(
      Launch(LookAtIndices<Id>, Blocks(n), gpu::kThreads, 0, stream, indices, n, rows, check));
  if (late != nullptr) {
    LateFinding* slot;
    LARGEOUT_RETURN_IF_ERROR(late->Open(&slot));
    LARGEOUT_RETURN_IF_ERROR(
        Launch(ReportIndices<Id>, 1, 1, 0, stream, indices, rows, increasing, check, slot));
  } else {
    IndexCheck found;
    LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(check, sizeof(found), &found, stream));
    if (found.bad != kNoBadIndex) {
      Id id;
      LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(indices + found.bad, sizeof(id), &id, stream));
      bad->position = static_cast<int64_t>(found.bad), bad->index = static_cast<int64_t>(id);
      return 0;
    }
    increasing = found.increasing != 0;
  }
  if (dim == 0) return 0;
  if (!increasing) {
    const Bags<Id> bags{indices, n, nullptr, 1, n, nullptr};  // a bag for each index
    EmbeddingGradPlanCuda plan;
    LARGEOUT_RETURN_IF_ERROR(PlanEmbeddingGradCuda(bags, Combiner::kSum, rows, call_, &plan));
    return SumAndStepCuda(plan, values, /*round=*/false, rule, table, dim, slots, numbers, check, call_);
  }
  return UpdateAligned(rule, table, dim, slots, indices, n, values, numbers, check, stream);
}

template <typename T, typename G>
int StepRowsCuda(UpdateRule rule, T* table, int64_t dim, float* const* slots, const int64_t* rows, int64_t n,
                 const G* values, const StepNumbers& numbers, GpuStream stream) {
  if (n == 0 || dim == 0) return 0;
  return UpdateAligned(rule, table, dim, slots, rows, n, values, numbers, nullptr, stream);
}
template int StepRowsCuda<float, float>(UpdateRule, float*, int64_t, float* const*, const int64_t*, int64_t,
                                        const float*, const StepNumbers&, GpuStream);
template int StepRowsCuda<bfloat16, bfloat16>(UpdateRule, bfloat16*, int64_t, float* const*, const int64_t*,
                                              int64_t, const bfloat16*, const StepNumbers&, GpuStream);

#define INSTANTIATE(T, G, Id)                                                                             \
  template int RowUpdateGpu::Update<T, G, Id>(UpdateRule, T*, int64_t, int64_t, float* const*, const Id*, \
                                              int64_t, const G*, const StepNumbers&, BadIndex*, bool);
INSTANTIATE(float, float, int32_t)
INSTANTIATE(float, float, int64_t)
INSTANTIATE(float, bfloat16, int32_t)
INSTANTIATE(float, bfloat16, int64_t)
INSTANTIATE(bfloat16, float, int32_t)
INSTANTIATE(bfloat16, float, int64_t)
INSTANTIATE(bfloat16, bfloat16, int32_t)
INSTANTIATE(bfloat16, bfloat16, int64_t)
#undef INSTANTIATE

}  // namespace largeout
