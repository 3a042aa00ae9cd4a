// Fuses summing duplicate gradients, the rule, and writing rows and slots: each touched row crosses the
// memory bus once each way. Bound by that traffic: bytes = rows touched x dim x (gradient + 2 x row + 2 x
// slots). Nothing is materialised but groups of equal indices, where indices do not increase already, and
// sums of gradients, where an index occurs often: one group of threads would add them for milliseconds.
#include <type_traits>

#include "common/cuda/cuda_warp.cuh"
#include "common/cuda/group_cuda.h"
#include "common/cuda/launch.cuh"
#include "embedding/cuda/embedding_cuda.h"
#include "row_update/cuda/row_update_cuda.h"
#include "row_update/cuda/row_update_rows.cuh"

namespace largeout {
namespace {

constexpr int kSerial = 128;  // gradients of a row that its threads add one after another

// What the host has to know of the indices.
struct Found {
  unsigned long long bad;  // the first position of an index outside the table; all ones: none
  int increasing;          // 0: not strictly
  int longest;             // the most gradients of one row
};

template <typename Id>
__global__ void LookAtIndices(const Id* indices, int64_t n, int64_t rows, Found* found) {
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

__global__ void FindLongest(const int32_t* starts, const GroupCounts* counts, Found* found) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int length = WarpLargest(i < counts->unique ? starts[i + 1] - starts[i] : 0);
  if (threadIdx.x % 32 == 0 && length > 0) atomicMax(&found->longest, length);
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

// The groups of equal indices, in scratch memory, and the size of the largest one. Waits for the stream.
template <typename Key, typename Id>
int GroupIndices(const Id* indices, int64_t n, int64_t rows, Found* device_found, Scratch* scratch,
                 GpuStream stream, EmbeddingGradPlanCuda* plan, int* longest) {
  Arena sizes(nullptr);
  KeyGroups<Key>(n, rows, &sizes);
  char* memory = scratch->Take<char>(sizes.bytes());
  if (memory == nullptr) return kNoMemory;
  Arena arena(memory);
  const KeyGroups<Key> groups(n, rows, &arena);
  LARGEOUT_RETURN_IF_ERROR(KeysOfIdsCuda(indices, groups, stream));
  LARGEOUT_RETURN_IF_ERROR(GroupKeysCuda(groups, stream));
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(&device_found->longest, 0, sizeof(int), stream));
  LARGEOUT_RETURN_IF_ERROR(
      Launch(FindLongest, Blocks(n), gpu::kThreads, 0, stream, groups.starts, groups.counts, device_found));
  GroupCounts counts;
  LARGEOUT_CUDA_RETURN(
      cudaMemcpyAsync(&counts, groups.counts, sizeof(counts), cudaMemcpyDeviceToHost, stream));
  LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(&device_found->longest, sizeof(int), longest, stream));
  plan->most_unique = counts.unique, plan->most_valid = counts.valid;
  plan->counts = groups.counts;
  plan->unique = groups.unique, plan->starts = groups.starts, plan->order = groups.order;
  return 0;
}

template <typename T, typename G>
int UpdateAligned(UpdateRule rule, const gpu::Task& task, GpuStream stream) {
  uintptr_t addresses = reinterpret_cast<uintptr_t>(task.table) | reinterpret_cast<uintptr_t>(task.values);
  for (float* slot : task.slots) addresses |= reinterpret_cast<uintptr_t>(slot);
  return LaunchRule<T, G>(rule, task, addresses % 16 == 0, stream);
}

}  // namespace

template <typename T, typename G, typename Id>
int RowUpdateCuda(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots,
                  const Id* indices, int64_t n, const G* values, const float* hyper, Scratch* scratch,
                  GpuStream stream, BadIndex* bad) {
  *bad = {-1, 0};
  if (n == 0) return 0;
  Found* device_found = scratch->Take<Found>(1);
  if (device_found == nullptr) return kNoMemory;
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(device_found, 0xff, sizeof(Found), stream));
  LARGEOUT_RETURN_IF_ERROR(
      Launch(LookAtIndices<Id>, Blocks(n), gpu::kThreads, 0, stream, indices, n, rows, device_found));
  Found found;
  LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(device_found, sizeof(found), &found, stream));
  if (found.bad != ~0ull) {
    Id id;
    LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(indices + found.bad, sizeof(id), &id, stream));
    *bad = {static_cast<int64_t>(found.bad), static_cast<int64_t>(id)};
    return 0;
  }
  if (dim == 0) return 0;

  gpu::Task task = {};
  task.table = table;
  for (int k = 0; k < kUpdateRuleInfo[static_cast<int>(rule)].slots; ++k) task.slots[k] = slots[k];
  task.values = values;
  task.hyper = hyper;
  task.ids = indices;
  task.n = n;
  task.dim = dim;
  task.wide = sizeof(Id) == 8;
  if (dim == 1 && rule == UpdateRule::kRowWiseAdagrad) rule = UpdateRule::kAdagrad;
  if (found.increasing != 0) return UpdateAligned<T, G>(rule, task, stream);

  EmbeddingGradPlanCuda plan;
  int longest = 0;
  LARGEOUT_RETURN_IF_ERROR(
      ShortKeys(rows)
          ? GroupIndices<uint32_t>(indices, n, rows, device_found, scratch, stream, &plan, &longest)
          : GroupIndices<uint64_t>(indices, n, rows, device_found, scratch, stream, &plan, &longest));
  task.ids = plan.unique;
  task.wide = true;
  task.n = plan.most_unique;
  if (longest <= kSerial) {
    task.starts = plan.starts;
    task.order = plan.order;
    return UpdateAligned<T, G>(rule, task, stream);
  }
  float* sums = scratch->Take<float>(plan.most_unique * dim);
  void* pieces = scratch->Allocate(EmbeddingGradScratchCuda(plan, dim));
  if (sums == nullptr || pieces == nullptr) return kNoMemory;
  LARGEOUT_RETURN_IF_ERROR(EmbeddingGradRowsCuda(plan, values, dim, pieces, nullptr, sums, stream));
  task.values = sums;
  return UpdateAligned<T, float>(rule, task, stream);
}

#define INSTANTIATE(T, G, Id)                                                                               \
  template int RowUpdateCuda<T, G, Id>(UpdateRule, T*, int64_t, int64_t, float* const*, const Id*, int64_t, \
                                       const G*, const float*, Scratch*, GpuStream, BadIndex*);
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
