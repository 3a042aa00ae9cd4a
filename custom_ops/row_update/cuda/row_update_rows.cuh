// Private to row_update.cu: the kernel that updates rows.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_ROWS_CUH_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_ROWS_CUH_

#include <cstdint>
#include <type_traits>

#include "common/cuda/cuda.h"
#include "row_update/cuda/row_update_rules.cuh"

namespace largeout {
namespace gpu {

constexpr int kThreads = 256;

template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T x[kWidth];
};

struct Task {
  void* table;
  float* slots[kMaxSlots];
  const void* values;
  const float* hyper;
  const void* ids;        // [n] int32 or int64, all different
  const int32_t* starts;  // [n + 1] into order: the gradients of ids[i]. Null: it has one, values[i]
  const int32_t* order;   // positions in values
  int64_t n, dim;
  bool wide;       // ids are int64
  int group_bits;  // log2 of the threads that share a row
  __device__ int64_t Id(int64_t i) const {
    return wide ? static_cast<const int64_t*>(ids)[i] : static_cast<const int32_t*>(ids)[i];
  }
};

// g of kWidth elements from column j: the values at order[begin, end), summed in that order.
template <typename G, int kWidth>
__device__ void SumGradients(const Task& task, int64_t begin, int64_t end, int64_t j, float* g) {
  const G* values = static_cast<const G*>(task.values);
  for (int k = 0; k < kWidth; ++k) g[k] = 0.f;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t position = task.order == nullptr ? i : task.order[i];
    const auto pack = *reinterpret_cast<const Pack<G, kWidth>*>(values + position * task.dim + j);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) g[k] += GpuToFloat(pack.x[k]);
  }
}

template <typename RuleT, typename T, typename G, int kWidth>
__global__ void __launch_bounds__(kThreads) UpdateRows(const Task task) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t i = thread >> task.group_bits;
  const int group = 1 << task.group_bits, lane = static_cast<int>(thread & (group - 1));
  const int64_t dim = task.dim;
  int64_t row = -1, begin = i, end = i + 1;
  if (i < task.n) {
    row = task.Id(i);
    if (task.starts != nullptr) begin = task.starts[i], end = task.starts[i + 1];
  }
  RuleT rule(task.hyper);
  if constexpr (std::is_same_v<RuleT, RowWiseAdagrad>) {
    // All threads of a warp take part in the exchange, also those without a row.
    float square = 0.f;
    if (row >= 0) {
      for (int64_t j = lane * kWidth; j < dim; j += group * kWidth) {
        float g[kWidth];
        SumGradients<G, kWidth>(task, begin, end, j, g);
        for (int k = 0; k < kWidth; ++k) square += g[k] * g[k];
      }
    }
    for (int offset = group / 2; offset > 0; offset /= 2)
      square += __shfl_xor_sync(0xffffffffu, square, offset);
    float sum = 0.f;
    if (row >= 0) sum = task.slots[0][row] + square / static_cast<float>(dim);
    __syncwarp();
    if (row >= 0 && lane == 0) task.slots[0][row] = sum;
    rule.root = sqrtf(sum + rule.epsilon);
  }
  if (row < 0) return;
  T* table = static_cast<T*>(task.table) + row * dim;
  for (int64_t j = lane * kWidth; j < dim; j += group * kWidth) {
    Pack<T, kWidth> w = *reinterpret_cast<Pack<T, kWidth>*>(table + j);
    Pack<float, kWidth> s[kMaxSlots];
#pragma unroll
    for (int m = 0; m < RuleT::kSlots; ++m) {
      s[m] = *reinterpret_cast<Pack<float, kWidth>*>(task.slots[m] + row * dim + j);
    }
    float g[kWidth];
    SumGradients<G, kWidth>(task, begin, end, j, g);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      float slots[kMaxSlots];
#pragma unroll
      for (int m = 0; m < RuleT::kSlots; ++m) slots[m] = s[m].x[k];
      GpuFromFloat(rule.Step(g[k], GpuToFloat(w.x[k]), slots), &w.x[k]);
#pragma unroll
      for (int m = 0; m < RuleT::kSlots; ++m) s[m].x[k] = slots[m];
    }
    *reinterpret_cast<Pack<T, kWidth>*>(table + j) = w;
#pragma unroll
    for (int m = 0; m < RuleT::kSlots; ++m) {
      *reinterpret_cast<Pack<float, kWidth>*>(task.slots[m] + row * dim + j) = s[m];
    }
  }
}

}  // namespace gpu
}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_ROWS_CUH_
