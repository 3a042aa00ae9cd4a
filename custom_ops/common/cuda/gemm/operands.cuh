// Operands of a matrix product, and their way to shared memory: copied as they are and without waiting, 16
// bytes at a time where their rows are aligned, else 4; misaligned bfloat16 go through registers.
//
// An operand has
//   Element                    float or bfloat16, as it is in shared memory
//   base                       some address of it
//   rows, columns              beyond them it is zero
//   Line(row)                  the address of a row's first element, or null beyond `rows`
//   aligned                    whether rows are, to 16 bytes
//   kConverts                  whether 16 bytes become something else, by Convert(row, column, x)
//   kRounded                   whether float32 elements are rounded where factors are of bfloat16, not split
#ifndef LARGEOUT_COMMON_CUDA_GEMM_OPERANDS_CUH_
#define LARGEOUT_COMMON_CUDA_GEMM_OPERANDS_CUH_

#include <type_traits>

#include "common/cuda/gemm/tile_shape.cuh"
#include "common/cuda/tensor_cores.cuh"

namespace largeout {

// Rows of a matrix, or some of them through an index.
template <typename T, bool kRounds = false>
struct RowOperand {
  using Element = T;
  static constexpr bool kConverts = false, kRounded = kRounds;
  const T* base;
  int64_t stride;
  const int32_t* index;  // or null: row r is base + r * stride
  int rows, columns;
  bool aligned;  // base and stride, to 16 bytes

  __device__ __forceinline__ const T* Line(int row) const {
    if (row >= rows) return nullptr;
    return base + (index == nullptr ? row : index[row]) * stride;
  }
};

// Products of rows of a table of type T, hidden vectors of type H and gradients of their logits. Beside
// hidden vectors of bfloat16 every factor is one bfloat16: float32 rows and gradients are rounded. Else
// factors are those of the table's type.
template <typename T, typename H>
using FactorType = std::conditional_t<std::is_same<H, bfloat16>::value, bfloat16, T>;
template <typename H>
constexpr bool kRoundsFactors = std::is_same<H, bfloat16>::value;
template <typename T, typename H>
using TableOperand = RowOperand<T, kRoundsFactors<H>>;

// The first `count` of 16 bytes of elements, the others being zero, to shared memory.
__device__ __forceinline__ void CopyElements(const float* from, const float* base, int count, float* to) {
#pragma unroll 1  // registers are for aligned rows
  for (int i = 0; i < 4; ++i) BeginCopy<4>(to + i, i < count ? from + i : base, i < count ? 4 : 0);
}
__device__ __forceinline__ void CopyElements(const bfloat16* from, const bfloat16*, int count, bfloat16* to) {
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) words[i / 2] |= static_cast<uint32_t>(from[i].bits) << (i % 2 * 16);
  }
  *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
}

// Whether rows of `dim` elements of every matrix begin at 16 bytes.
template <typename... X>
inline bool RowsCopied(int64_t dim, const X*... matrices) {
  return (
      (dim * static_cast<int64_t>(sizeof(X)) % 16 == 0 && reinterpret_cast<uintptr_t>(matrices) % 16 == 0) &&
      ...);
}

// Which rows of `dim` elements may be copied as they are.
struct CopiedRows {
  bool hidden, table;
  template <typename H, typename T>
  static CopiedRows Of(int64_t dim, const H* hidden, const T* table) {
    return {RowsCopied(dim, hidden), RowsCopied(dim, table)};
  }
};

// The rows of a matrix from `row` on, and their elements from `column` on, a multiple of 16 bytes.
template <bool kRounds = false, typename X>
__device__ __forceinline__ RowOperand<X, kRounds> PartOf(const X* matrix, int64_t stride, int64_t rows,
                                                         int64_t columns, int64_t row, int64_t column,
                                                         bool aligned) {
  return {matrix + row * stride + column,     stride, nullptr, static_cast<int>(rows - row),
          static_cast<int>(columns - column), aligned};
}

// A piece of an operand, of kSize rows (or columns) and kTileK steps of the sum. kAlongK: the sum runs along
// the operand's rows. In shared memory it is laid out as in global memory; strides keep what a warp reads together,
// of eight or four lines, in different banks.
template <class Shape, int kSize, bool kAlongK, typename Operand>
struct Piece {
  using Element = typename Operand::Element;
  static constexpr int kVec = 16 / sizeof(Element);
  static constexpr int kLine = kAlongK ? kTileK : kSize, kLines = kAlongK ? kSize : kTileK;
  static constexpr bool kFloatToBf16 = sizeof(Element) == 4 && std::is_same<typename Shape::Mma, Bf16>::value;
  static constexpr bool kOneFactor = sizeof(Element) == 2 || (kFloatToBf16 && Operand::kRounded);
  static constexpr int kPad = sizeof(Element) == 2 || kFloatToBf16 == kAlongK ? 8 : 4;
  static constexpr int kStride = kLine + kPad;
  static constexpr int kUnits = kLines * kLine / kVec;  // of 16 bytes
  static constexpr int kEach = (kUnits + Shape::kThreads - 1) / Shape::kThreads;
  static constexpr int kBytes = kLines * kStride * static_cast<int>(sizeof(Element));
  static_assert(kStride * sizeof(Element) % 16 == 0, "aligned lines");

  const Element* lines[kAlongK ? kEach : 1];

  static __device__ __forceinline__ int LineOf(int e) {
    return (e * Shape::kThreads + static_cast<int>(threadIdx.x)) / (kLine / kVec);
  }
  static __device__ __forceinline__ int PlaceOf(int e) {
    return (e * Shape::kThreads + static_cast<int>(threadIdx.x)) % (kLine / kVec) * kVec;
  }
  static __device__ __forceinline__ bool Beyond(int e) {
    return kUnits % Shape::kThreads != 0 && e * Shape::kThreads + static_cast<int>(threadIdx.x) >= kUnits;
  }

  __device__ __forceinline__ void Start(const Operand& operand) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) lines[e] = Beyond(e) ? nullptr : operand.Line(LineOf(e));
    }
  }
  // Begins to fetch the steps from k on.
  __device__ __forceinline__ void Begin(const Operand& operand, int k, Element* shared) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (Beyond(e)) break;
      const Element* line;
      if constexpr (kAlongK) {
        line = lines[e];
      } else {
        line = operand.Line(k + LineOf(e));
      }
      const int column = kAlongK ? k + PlaceOf(e) : PlaceOf(e);
      Element* to = shared + LineOf(e) * kStride + PlaceOf(e);
      const int left = line == nullptr ? 0 : max(0, min(kVec, operand.columns - column));
      const Element* from = left > 0 ? line + column : operand.base;
      if (operand.aligned) {
        BeginCopy<16>(to, from, left * static_cast<int>(sizeof(Element)));
      } else {
        CopyElements(from, operand.base, left, to);
      }
    }
  }
  // Converts what this thread has copied, once it has come.
  static __device__ __forceinline__ void Finish(const Operand& operand, int k, Element* shared) {
    if constexpr (Operand::kConverts) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if (Beyond(e)) break;
        const int row = kAlongK ? LineOf(e) : k + LineOf(e), column = kAlongK ? k + PlaceOf(e) : PlaceOf(e);
        auto* x = reinterpret_cast<uint4*>(shared + LineOf(e) * kStride + PlaceOf(e));
        *x = operand.Convert(row, column, *x);
      }
    }
  }
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_GEMM_OPERANDS_CUH_
