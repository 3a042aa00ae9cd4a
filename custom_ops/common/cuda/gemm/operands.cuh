// Operands of a matrix product, and their way to shared memory: copied as they lie, 16 bytes at a time and
// without waiting, where their rows are aligned; else through registers.
//
// An operand has
//   Element                    float or bfloat16, as it lies in shared memory
//   rows, columns              beyond them it is zero
//   Line(row)                  the address of a row's first element, or null beyond `rows`
//   Read(line, column)         16 bytes of a row as they are in memory
//   kConverts                  whether they become something else, by Convert(row, column, x)
//   Copies()                   else: whether they are copied without waiting
#ifndef LARGEOUT_COMMON_CUDA_GEMM_OPERANDS_CUH_
#define LARGEOUT_COMMON_CUDA_GEMM_OPERANDS_CUH_

#include <type_traits>

#include "common/cuda/gemm/tile_shape.cuh"
#include "common/cuda/tensor_cores.cuh"

namespace largeout {

// Rows of a matrix, or some of them through an index.
template <typename T>
struct RowOperand {
  using Element = T;
  static constexpr bool kConverts = false;
  static constexpr int kVec = 16 / sizeof(T);
  const T* base;
  int64_t stride;
  const int32_t* index;  // or null: row r is base + r * stride
  int rows, columns;
  bool aligned;  // base and stride, to 16 bytes

  __device__ __forceinline__ const T* Line(int row) const {
    if (row >= rows) return nullptr;
    return base + (index == nullptr ? row : index[row]) * stride;
  }
  __device__ __forceinline__ bool Copies() const { return aligned; }
  __device__ __forceinline__ uint4 Read(const T* line, int column) const {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (line == nullptr || column + i >= columns) continue;
      if constexpr (sizeof(T) == 4) {
        words[i] = __float_as_uint(line[column + i]);
      } else {
        words[i / 2] |= static_cast<uint32_t>(line[column + i].bits) << (i % 2 * 16);
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

// Whether rows of `dim` elements of every matrix begin at 16 bytes.
template <typename... X>
inline bool RowsCopied(int64_t dim, const X*... matrices) {
  return (
      (dim * static_cast<int64_t>(sizeof(X)) % 16 == 0 && reinterpret_cast<uintptr_t>(matrices) % 16 == 0) &&
      ...);
}

// The rows of a matrix from `row` on, and their elements from `column` on, a multiple of 16 bytes.
template <typename X>
__device__ __forceinline__ RowOperand<X> PartOf(const X* matrix, int64_t stride, int64_t rows,
                                                int64_t columns, int64_t row, int64_t column, bool aligned) {
  return {matrix + row * stride + column,     stride, nullptr, static_cast<int>(rows - row),
          static_cast<int>(columns - column), aligned};
}

// A piece of an operand, of kSize rows (or columns) and kTileK steps of the sum. kAlongK: the sum runs along
// the operand's rows. In shared memory it lies as in global memory; strides keep what a warp reads together,
// of eight or four lines, in different banks.
template <class Shape, int kSize, bool kAlongK, typename Operand>
struct Piece {
  using Element = typename Operand::Element;
  static constexpr int kVec = 16 / sizeof(Element);
  static constexpr int kLine = kAlongK ? kTileK : kSize, kLines = kAlongK ? kSize : kTileK;
  static constexpr bool kSplitBf16 = sizeof(Element) == 4 && std::is_same<typename Shape::Mma, Bf16>::value;
  static constexpr int kPad = sizeof(Element) == 2 || kSplitBf16 == kAlongK ? 8 : 4;
  static constexpr int kStride = kLine + kPad;
  static constexpr int kUnits = kLines * kLine / kVec;  // of 16 bytes
  static constexpr int kEach = (kUnits + Shape::kThreads - 1) / Shape::kThreads;
  static constexpr int kBytes = kLines * kStride * static_cast<int>(sizeof(Element));
  static_assert(kStride * sizeof(Element) % 16 == 0, "aligned lines");

  const Element* lines[kAlongK ? kEach : 1];
  uint4 held[Operand::kConverts ? kEach : 1];

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
      if constexpr (Operand::kConverts) {
        held[e] = operand.Read(line, column);
      } else if (operand.Copies()) {
        const int left = line == nullptr ? 0 : max(0, min(kVec, operand.columns - column));
        BeginCopy16(to, left > 0 ? line + column : operand.base, left * static_cast<int>(sizeof(Element)));
      } else {
        *reinterpret_cast<uint4*>(to) = operand.Read(line, column);
      }
    }
  }
  // Writes what is converted, once it has come.
  __device__ __forceinline__ void Finish(const Operand& operand, int k, Element* shared) const {
    if constexpr (Operand::kConverts) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if (Beyond(e)) break;
        const int row = kAlongK ? LineOf(e) : k + LineOf(e), column = kAlongK ? k + PlaceOf(e) : PlaceOf(e);
        *reinterpret_cast<uint4*>(shared + LineOf(e) * kStride + PlaceOf(e)) =
            operand.Convert(row, column, held[e]);
      }
    }
  }
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_GEMM_OPERANDS_CUH_
