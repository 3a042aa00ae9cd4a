// The step of columns of a row whose gradient is in registers. Internal.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_STEP_CUH_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_STEP_CUH_

#include <type_traits>

#include "embedding/cuda/embedding_tile.cuh"
#include "row_update/cuda/row_update_rounding.cuh"
#include "row_update/cuda/row_update_rules.cuh"

namespace largeout {

// The table that is updated, its slots, and the numbers of the step.
template <typename T>
struct TableStep {
  T* table;  // [rows, dim]
  float* slots[kMaxSlots];
  const float* hyper;
  const int64_t* rounding;  // as in StepNumbers
  int64_t dim;
};

template <typename RuleT>
constexpr bool kRowWise = std::is_same_v<RuleT, gpu::RowWiseAdagrad>;

// kPack columns of a row and its slots, in registers.
template <typename RuleT, typename T, int kPack>
struct RowColumns {
  static constexpr int kWidth = kPack < 4 ? kPack : 4;  // 16 bytes of a slot
  static constexpr int kPieces = kPack / kWidth;
  using Floats = Pack<float, kWidth>;
  Pack<T, kPack> w;  // at most 16 bytes
  Floats s[RuleT::kSlots > 0 ? RuleT::kSlots : 1][kPieces];

  // From column at % dim of row at / dim.
  __device__ __forceinline__ void Load(const TableStep<T>& step, int64_t at) {
    w = *reinterpret_cast<const Pack<T, kPack>*>(step.table + at);
#pragma unroll
    for (int m = 0; m < RuleT::kSlots; ++m) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) s[m][p] = reinterpret_cast<const Floats*>(step.slots[m] + at)[p];
    }
  }
  // g: their gradient. of_row: of their row, by `rounding`.
  __device__ __forceinline__ void Take(const RuleT& rule, const float (&g)[kPack], const gpu::Rounding<T>& rounding,
                                       uint32_t of_row, int64_t column) {
    float x[kPack];
    w.Floats(x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      float slots[kMaxSlots];
#pragma unroll
      for (int m = 0; m < RuleT::kSlots; ++m) slots[m] = s[m][i / kWidth].part[i % kWidth];
      T stored;
      rounding.Store(rule.Step(g[i], x[i], slots), of_row, column + i, &stored);
      x[i] = GpuToFloat(stored);
#pragma unroll
      for (int m = 0; m < RuleT::kSlots; ++m) s[m][i / kWidth].part[i % kWidth] = slots[m];
    }
    w = Pack<T, kPack>::Of(x);
  }
  __device__ __forceinline__ void Store(const TableStep<T>& step, int64_t at) const {
    *reinterpret_cast<Pack<T, kPack>*>(step.table + at) = w;
#pragma unroll
    for (int m = 0; m < RuleT::kSlots; ++m) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) reinterpret_cast<Floats*>(step.slots[m] + at)[p] = s[m][p];
    }
  }
};

// A gradient as it is when it has been written as T.
__device__ __forceinline__ float RoundTo(float x, const float*) { return x; }
__device__ __forceinline__ float RoundTo(float x, const bfloat16*) {
  bfloat16 rounded;
  GpuFromFloat(x, &rounded);
  return GpuToFloat(rounded);
}

// row_wise_adagrad's accumulator after a gradient with this sum of squares.
template <typename T>
__device__ __forceinline__ float Accumulated(const TableStep<T>& step, float before, float squares) {
  return before + squares / static_cast<float>(step.dim);
}

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_STEP_CUH_
