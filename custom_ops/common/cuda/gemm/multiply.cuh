// One block's tile of a matrix product on tensor cores, sm_80 and later. Pieces of both operands are on their
// way to shared memory, Shape::kStages - 1 of them ahead, while one is multiplied. Operands are functors
// (operands.cuh), so one routine serves rows of a table, gathered hidden vectors and gradients that are made
// of probabilities on the way.
//
// Bounds, for a tile of M x N elements that are sums of K: 2 M N K flops, three times as many on the tensor
// cores for float32 factors that are not rounded to TF32 (two or three times for those that are split into
// bfloat16), and (M + N) K
// elements read, from the L2 cache where neighbouring blocks share operands: 128 x 128 float32 tiles read 1
// byte for 32 flops, so 3 TB/s of it are asked of at 100 TFLOP/s.
#ifndef LARGEOUT_COMMON_CUDA_GEMM_MULTIPLY_CUH_
#define LARGEOUT_COMMON_CUDA_GEMM_MULTIPLY_CUH_

#include <algorithm>

#include "common/cuda/gemm/operands.cuh"

namespace largeout {

// Dynamic shared memory of MultiplyTile.
template <class Shape, bool kAAlongK, bool kBAlongK, typename A, typename B>
constexpr int kTileBytes = Shape::kStages * (Piece<Shape, Shape::kM, kAAlongK, A>::kBytes +
                                             Piece<Shape, Shape::kN, kBAlongK, B>::kBytes);

// x = big + small but for 2^-22 of it, both of them TF32: tensor cores cut `small` to it. NaN stays NaN.
__device__ __forceinline__ void SplitTf32(float x, uint32_t* big, uint32_t* small) {
  *big = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  *small = __float_as_uint(x - __uint_as_float(*big));
}
// Likewise two neighbours, of 16 bits together.
__device__ __forceinline__ void SplitBf16(float x, float y, uint32_t* big, uint32_t* small) {
  *big = PackBfloat16(x, y);
  *small = PackBfloat16(x - __uint_as_float(*big << 16), y - __uint_as_float(*big & 0xffff0000u));
}

// The 16 x kDepth block of rows (or columns) from `first` and steps from k on, as the instructions take it.
// Of factors that are rounded nobody uses `small`.
template <class Mma, class Piece, bool kAlongK>
__device__ __forceinline__ void LoadFragment(const typename Piece::Element* shared, int first, int k,
                                             uint32_t (&big)[4], uint32_t (&small)[4]) {
  constexpr int kStride = Piece::kStride;
  constexpr bool kTf32 = std::is_same<Mma, Tf32>::value;
  const int lane = threadIdx.x % 32;
  if constexpr (sizeof(typename Piece::Element) == 2) {
    const int row = first + lane / 8 % 2 * 8, step = k + lane / 16 * 8;
    LoadBlocks<!kAlongK>(
        kAlongK ? shared + (row + lane % 8) * kStride + step : shared + (step + lane % 8) * kStride + row,
        big);
  } else if constexpr (kTf32 && kAlongK) {
    uint32_t x[4];
    LoadBlocks<false>(shared + (first + lane / 8 % 2 * 8 + lane % 8) * kStride + k + lane / 16 * 4, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) SplitTf32(__uint_as_float(x[i]), &big[i], &small[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + i % 2 * 8 + lane / 4;
      if constexpr (kTf32) {
        SplitTf32(shared[(k + i / 2 * 4 + lane % 4) * kStride + row], &big[i], &small[i]);
      } else if constexpr (kAlongK) {
        const float2 x =
            *reinterpret_cast<const float2*>(shared + row * kStride + k + i / 2 * 8 + lane % 4 * 2);
        SplitBf16(x.x, x.y, &big[i], &small[i]);
      } else {
        const float* x = shared + (k + i / 2 * 8 + lane % 4 * 2) * kStride + row;
        SplitBf16(x[0], x[kStride], &big[i], &small[i]);
      }
    }
  }
}

__device__ __forceinline__ void MultiplyKind(Tf32, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  MultiplyTf32Blocks(c, a, b0, b1);
}
__device__ __forceinline__ void MultiplyKind(Bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  MultiplyBlocks(c, a, b0, b1);
}

// acc += the product of the first `steps` of two pieces, rounded up. kTf32: factors of Tf32 are rounded. Tensor cores cut their sums where
// float32 arithmetic rounds; so where several instructions make one step of the sum, they begin at zero, and
// it is added by float32 arithmetic: in long sums the cuts would add up.
template <class Shape, class PieceA, bool kAAlongK, class PieceB, bool kBAlongK, bool kTf32>
__device__ __forceinline__ void MultiplyPieces(const typename PieceA::Element* a,
                                               const typename PieceB::Element* b, int steps,
                                               float (&acc)[Shape::kTM][Shape::kTN]) {
  using Mma = typename Shape::Mma;
  constexpr bool kOneA = kTf32 || PieceA::kOneFactor, kOneB = kTf32 || PieceB::kOneFactor;
  constexpr int kDown = Shape::kTM / 2, kAcross = Shape::kTN / 2;
#pragma unroll 1
  for (int k = 0; k < steps; k += Mma::kDepth) {
    uint32_t x[kDown][4], x_small[kDown][4];
#pragma unroll
    for (int i = 0; i < kDown; ++i)
      LoadFragment<Mma, PieceA, kAAlongK>(a, Shape::FirstRow() + i * 16, k, x[i], x_small[i]);
#pragma unroll
    for (int j = 0; j < kAcross; j += 2) {
      uint32_t y[4], y_small[4];
      LoadFragment<Mma, PieceB, kBAlongK>(b, Shape::FirstColumn() + j * 8, k, y, y_small);
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum[4];
#pragma unroll
          for (int n = 0; n < 4; ++n)
            sum[n] = kOneA && kOneB ? acc[2 * i + n / 2][2 * (j + half) + n % 2] : 0.f;
          if constexpr (!kOneA) MultiplyKind(Mma(), sum, x_small[i], y[half], y[half + 2]);
          if constexpr (!kOneB) MultiplyKind(Mma(), sum, x[i], y_small[half], y_small[half + 2]);
          MultiplyKind(Mma(), sum, x[i], y[half], y[half + 2]);
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            float& to = acc[2 * i + n / 2][2 * (j + half) + n % 2];
            to = kOneA && kOneB ? sum[n] : to + sum[n];
          }
        }
      }
    }
  }
}

// Of the larger one of both shapes.
template <typename T, bool kAAlongK, bool kBAlongK, typename A, typename B>
constexpr int kTilesBytes = std::max(kTileBytes<typename Tiles<T>::LargeM, kAAlongK, kBAlongK, A, B>,
                                     kTileBytes<typename Tiles<T>::SmallM, kAAlongK, kBAlongK, A, B>);

struct NothingEachK {
  template <typename Get>
  __device__ __forceinline__ void operator()(const Get&) const {}
};

// acc[i][j] += sum over k in [begin, end) of A(Row(i), k) * B(Column(j), k), in the order of k. Operands are
// zero beyond their ends, so `end` is rounded up; warps whose rows or columns are all beyond them multiply
// nothing. tf32: factors of Tf32 are rounded. shared: kTileBytes, aligned to 16. All threads of the block come; they need a barrier before they
// use `shared` otherwise. each_k sees every piece of A, as a function of (row, k).
template <class Shape, bool kAAlongK, bool kBAlongK, typename A, typename B, typename EachK>
__device__ __forceinline__ void MultiplyTile(const A& a, const B& b, int begin, int end, bool tf32, char* shared,
                                             float (&acc)[Shape::kTM][Shape::kTN], const EachK& each_k) {
  using PieceA = Piece<Shape, Shape::kM, kAAlongK, A>;
  using PieceB = Piece<Shape, Shape::kN, kBAlongK, B>;
  using ElementA = typename A::Element;
  using ElementB = typename B::Element;
  constexpr int kStages = Shape::kStages;
  const auto stage_a = [&](int stage) {
    return reinterpret_cast<ElementA*>(shared + stage * (PieceA::kBytes + PieceB::kBytes));
  };
  const auto stage_b = [&](int stage) {
    return reinterpret_cast<ElementB*>(shared + stage * (PieceA::kBytes + PieceB::kBytes) + PieceA::kBytes);
  };
  const bool multiplies = Shape::FirstRow() < (kAAlongK ? a.rows : a.columns) &&
                          Shape::FirstColumn() < (kBAlongK ? b.rows : b.columns);
  PieceA piece_a;
  PieceB piece_b;
  piece_a.Start(a);
  piece_b.Start(b);
  __syncthreads();  // the tile before has been used
  const auto begin_piece = [&](int k, int stage) {
    if (k < end) {
      piece_a.Begin(a, k, stage_a(stage));
      piece_b.Begin(b, k, stage_b(stage));
    }
    CommitCopies();
  };
  const auto finish_piece = [&](int k, int stage) {
    WaitForCopies<kStages - 2>();
    if (k >= end) return;
    PieceA::Finish(a, k, stage_a(stage));
    PieceB::Finish(b, k, stage_b(stage));
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) begin_piece(begin + stage * kTileK, stage);
  finish_piece(begin, 0);
  int stage = 0;
  for (int k = begin; k < end; k += kTileK) {
    __syncthreads();  // this piece is there, and the last one has been used
    begin_piece(k + (kStages - 1) * kTileK, stage == 0 ? kStages - 1 : stage - 1);
    const ElementA* at = stage_a(stage);
    each_k([&](int row, int step) {
      return GpuToFloat(at[kAAlongK ? row * PieceA::kStride + step : step * PieceA::kStride + row]);
    });
    const auto multiply = [&](auto rounds) {
      MultiplyPieces<Shape, PieceA, kAAlongK, PieceB, kBAlongK, decltype(rounds)::value>(
          at, stage_b(stage), min(kTileK, end - k), acc);
    };
    if (multiplies && std::is_same<typename Shape::Mma, Tf32>::value && tf32) {
      multiply(std::is_same<typename Shape::Mma, Tf32>());
    } else if (multiplies) {
      multiply(std::false_type());
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
    finish_piece(k + kTileK, stage);
  }
}

// Writes a tile of which `rows` and `columns` exist. line(row): where a row goes; before(row): what is added
// to it, or null. aligned: lines are, to kRun elements.
template <class Shape, typename Line, typename Before>
__device__ __forceinline__ void StoreTile(const float (&acc)[Shape::kTM][Shape::kTN], int64_t rows,
                                          int64_t columns, bool aligned, const Line& line,
                                          const Before& before) {
  constexpr int kRun = Shape::kRun;
#pragma unroll
  for (int i = 0; i < Shape::kTM; ++i) {
    const int row = Shape::Row(i);
    if (row >= rows) continue;
    auto* to = line(row);
    const float* old_line = before(row);
#pragma unroll
    for (int j = 0; j < Shape::kTN; j += kRun) {
      const int column = Shape::Column(j);
      if (aligned && column + kRun <= columns) {
        float run[kRun], old[kRun] = {};
        if (old_line != nullptr) LoadVec<kRun>(old_line + column, old);
#pragma unroll
        for (int n = 0; n < kRun; ++n) run[n] = acc[i][j + n] + old[n];
        StoreVec<kRun>(to + column, run);
      } else {
#pragma unroll
        for (int n = 0; n < kRun; ++n) {
          if (column + n < columns)
            GpuFromFloat(acc[i][j + n] + (old_line == nullptr ? 0.f : old_line[column + n]), to + column + n);
        }
      }
    }
  }
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_GEMM_MULTIPLY_CUH_
