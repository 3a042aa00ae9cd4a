// Fuses summing duplicate gradients, the rule, and writing rows and slots: each touched row crosses the
// memory bus once each way. Bound by that traffic: bytes = rows touched x dim x (gradient + 2 x row + 2 x
// slots). Nothing is materialised but the sorted indices, and those only where indices do not increase
// already.
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "common/cuda/launch.cuh"
#include "row_update/cuda/row_update_cuda.h"
#include "row_update/cuda/row_update_rows.cuh"

namespace largeout {
namespace {

// First position of an index outside the table (all ones: none), and whether indices strictly increase (-1:
// yes).
struct Found {
  unsigned long long bad;
  int increasing;
  int unused;
};

template <typename Id>
__global__ void LookAtIndices(const Id* indices, int64_t n, int64_t rows, Found* found) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int64_t id = indices[i];
  // Minimum and a plain flag: the result does not depend on the order of threads.
  if (id < 0 || id >= rows) atomicMin(&found->bad, static_cast<unsigned long long>(i));
  if (i > 0 && indices[i - 1] >= indices[i]) found->increasing = 0;
}

__global__ void Count(int32_t* positions, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) positions[i] = static_cast<int32_t>(i);
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

// Workspace: Found, sorted ids, positions twice, cub's own; each aligned to 256 bytes.
struct Workspace {
  size_t sorted, unsorted_positions, positions, cub, total;
  int error;
  Workspace(int64_t n, int id_size) {
    const auto align = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    sorted = align(sizeof(Found));
    unsorted_positions = sorted + align(n * id_size);
    positions = unsorted_positions + align(n * sizeof(int32_t));
    cub = positions + align(n * sizeof(int32_t));
    size_t bytes = 0;
    int32_t* none = nullptr;
    error = id_size == 8 ? Sort<int64_t>(nullptr, &bytes, nullptr, nullptr, none, none, n, 63, nullptr)
                         : Sort<int32_t>(nullptr, &bytes, nullptr, nullptr, none, none, n, 31, nullptr);
    total = cub + bytes;
  }
  template <typename Id>
  static int Sort(void* temporary, size_t* bytes, const Id* in, Id* out, const int32_t* positions_in,
                  int32_t* positions_out, int64_t n, int bits, GpuStream stream) {
    return cub::DeviceRadixSort::SortPairs(temporary, *bytes, in, out, positions_in, positions_out,
                                           static_cast<int>(n), 0, bits, stream);
  }
};

}  // namespace

size_t RowUpdateWorkspaceCuda(int64_t n, int id_size, int* error) {
  const Workspace workspace(n, id_size);
  *error = workspace.error;
  return workspace.total;
}

template <typename T, typename G, typename Id>
int RowUpdateCuda(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots,
                  const Id* indices, int64_t n, const G* values, const float* hyper, void* workspace,
                  size_t workspace_bytes, GpuStream stream, BadIndex* bad) {
  *bad = {-1, 0};
  if (n == 0) return 0;
  char* memory = static_cast<char*>(workspace);
  Found* device_found = reinterpret_cast<Found*>(memory);
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(device_found, 0xff, sizeof(Found), stream));
  LARGEOUT_RETURN_IF_ERROR(
      Launch(LookAtIndices<Id>, Blocks(n), gpu::kThreads, 0, stream, indices, n, rows, device_found));
  Found found;
  LARGEOUT_CUDA_RETURN(cudaMemcpyAsync(&found, device_found, sizeof(Found), cudaMemcpyDeviceToHost, stream));
  LARGEOUT_CUDA_RETURN(cudaStreamSynchronize(stream));
  if (found.bad != ~0ull) {
    Id id;
    LARGEOUT_CUDA_RETURN(
        cudaMemcpyAsync(&id, indices + found.bad, sizeof(Id), cudaMemcpyDeviceToHost, stream));
    LARGEOUT_CUDA_RETURN(cudaStreamSynchronize(stream));
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
  if (found.increasing == 0) {
    const Workspace layout(n, sizeof(Id));
    LARGEOUT_CUDA_RETURN(static_cast<cudaError_t>(layout.error));
    if (layout.total > workspace_bytes) return static_cast<int>(cudaErrorInvalidValue);
    Id* sorted = reinterpret_cast<Id*>(memory + layout.sorted);
    int32_t* counted = reinterpret_cast<int32_t*>(memory + layout.unsorted_positions);
    int32_t* positions = reinterpret_cast<int32_t*>(memory + layout.positions);
    LARGEOUT_RETURN_IF_ERROR(Launch(Count, Blocks(n), gpu::kThreads, 0, stream, counted, n));
    int bits = 1;
    while (bits < 63 && (rows - 1) >> bits != 0) ++bits;
    size_t bytes = workspace_bytes - layout.cub;
    const int error =
        Workspace::Sort(memory + layout.cub, &bytes, indices, sorted, counted, positions, n, bits, stream);
    LARGEOUT_CUDA_RETURN(static_cast<cudaError_t>(error));
    task.ids = sorted;
    task.positions = positions;
  }
  uintptr_t addresses = reinterpret_cast<uintptr_t>(table) | reinterpret_cast<uintptr_t>(values);
  for (float* slot : task.slots) addresses |= reinterpret_cast<uintptr_t>(slot);
  if (dim == 1 && rule == UpdateRule::kRowWiseAdagrad) rule = UpdateRule::kAdagrad;
  return LaunchRule<T, G>(rule, task, addresses % 16 == 0, stream);
}

#define INSTANTIATE(T, G, Id)                                                                               \
  template int RowUpdateCuda<T, G, Id>(UpdateRule, T*, int64_t, int64_t, float* const*, const Id*, int64_t, \
                                       const G*, const float*, void*, size_t, GpuStream, BadIndex*);
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
