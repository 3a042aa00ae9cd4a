// Private to row_update.cu: the kernel that updates rows of which each has one gradient.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_ROWS_CUH_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_ROWS_CUH_

#include <cstdint>
#include <type_traits>

#include "common/cuda/cuda.h"
#include "row_update/cuda/row_update_rounding.cuh"
#include "row_update/cuda/row_update_rules.cuh"
#include "row_update/cuda/row_update_sums.h"

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
  const int64_t* rounding;  // as in StepNumbers
  const IndexCheck* check;  // nothing is done where it found anything; null: there is nothing to find
  const void* ids;          // [n] int32 or int64, all different, or -1: none
  int64_t n, dim;
  bool wide;       // ids are int64
  int group_bits;  // log2 of the threads that share a row
  __device__ int64_t Id(int64_t i) const {
    return wide ? static_cast<const int64_t*>(ids)[i] : static_cast<const int32_t*>(ids)[i];
  }
};

// kWidth elements from column j of the gradient of ids[i].
template <typename G, int kWidth>
__device__ void LoadGradient(const Task& task, int64_t i, int64_t j, float* g) {
  const auto pack = *reinterpret_cast<const Pack<G, kWidth>*>(static_cast<const G*>(task.values) + i * task.dim + j);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) g[k] = GpuToFloat(pack.x[k]);
}

template <typename RuleT, typename T, typename G, int kWidth>
__global__ void __launch_bounds__(kThreads) UpdateRows(const Task task) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t i = thread >> task.group_bits;
  const int group = 1 << task.group_bits, lane = static_cast<int>(thread & (group - 1));
  const int64_t dim = task.dim;
  const bool all_good =
      task.check == nullptr || (task.check->bad == kNoBadIndex && task.check->increasing != 0);
  const int64_t row = all_good && i < task.n ? task.Id(i) : -1;
  RuleT rule(task.hyper);
  if constexpr (std::is_same_v<RuleT, RowWiseAdagrad>) {
    // All threads of a warp take part in the exchange, also those without a row.
    float square = 0.f;
    if (row >= 0) {
      for (int64_t j = lane * kWidth; j < dim; j += group * kWidth) {
        float g[kWidth];
        LoadGradient<G, kWidth>(task, i, j, g);
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
  const Rounding<T> rounding(task.rounding);
  const uint32_t of_row = rounding.OfRow(row);
  T* table = static_cast<T*>(task.table) + row * dim;
  for (int64_t j = lane * kWidth; j < dim; j += group * kWidth) {
    Pack<T, kWidth> w = *reinterpret_cast<Pack<T, kWidth>*>(table + j);
    Pack<float, kWidth> s[kMaxSlots];
#pragma unroll
    for (int m = 0; m < RuleT::kSlots; ++m) {
      s[m] = *reinterpret_cast<Pack<float, kWidth>*>(task.slots[m] + row * dim + j);
    }
    float g[kWidth];
    LoadGradient<G, kWidth>(task, i, j, g);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      float slots[kMaxSlots];
#pragma unroll
      for (int m = 0; m < RuleT::kSlots; ++m) slots[m] = s[m].x[k];
      rounding.Store(rule.Step(g[k], GpuToFloat(w.x[k]), slots), of_row, j + k, &w.x[k]);
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
