// MultiplyTile on tensor cores, for bfloat16 tables. A float32 operand is split into two bfloat16, x = high +
// low, which keeps 16 bits of it: products are 256 times more exact than those of rounded operands. Rows of
// the table are exact.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_MMA_TILE_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_MMA_TILE_CUH_

#include "common/cuda/tensor_cores.cuh"
#include "tree_softmax/cuda/tree_softmax_tile.cuh"

namespace largeout {

// kM x kN elements by four warps, WM of them above each other.
template <int M, int N, int WM>
struct MmaShape {
  static constexpr bool kTensorCores = true;
  static constexpr int kM = M, kN = N, kRun = 2;
  static constexpr int kWarpM = M / WM, kWarpN = N / (4 / WM);       // of a warp
  static constexpr int kTM = kWarpM / 16 * 2, kTN = kWarpN / 8 * 2;  // of a thread
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0, "whole blocks");
  // Rows of 16 (or M, N) elements are padded by 16 bytes: eight of them lie in different banks.
  static constexpr int kA = M * (kTileK + 8) > kTileK*(M + 8) ? M * (kTileK + 8) : kTileK * (M + 8);
  static constexpr int kB = N * (kTileK + 8) > kTileK*(N + 8) ? N * (kTileK + 8) : kTileK * (N + 8);
  static constexpr int kShared = kA + kB;  // floats: two halves, high and low
  static __device__ int FirstRow() { return threadIdx.x / 32 % WM * kWarpM; }
  static __device__ int FirstColumn() { return threadIdx.x / 32 / WM * kWarpN; }
  static __device__ int Row(int i) { return FirstRow() + i / 2 * 16 + threadIdx.x % 32 / 4 + i % 2 * 8; }
  static __device__ int Column(int j) { return FirstColumn() + j / 2 * 8 + threadIdx.x % 4 * 2 + j % 2; }
};

template <>
struct Tiles<bfloat16> {
  using Tall = MmaShape<64, 128, 2>;
  using Flat = MmaShape<16, 128, 1>;
};

// A piece in shared memory: [kSize][kTileK + 8] where the operand runs along k, else [kTileK][kSize + 8].
template <int kSize, bool kAlongK, typename Operand>
struct SplitPiece : Piece<kSize, kAlongK, Operand> {
  using Base = Piece<kSize, kAlongK, Operand>;
  static constexpr int kStride = kAlongK ? kTileK + 8 : kSize + 8;
  __device__ __forceinline__ void Store(bfloat16* high, bfloat16* low) const {
#pragma unroll
    for (int e = 0; e < Base::kEach; ++e) {
      const int q = e * kTileThreads + threadIdx.x;
      if (Base::kQuads % kTileThreads != 0 && q >= Base::kQuads) break;
      const int each = (kAlongK ? kTileK : kSize) / 4, at = q / each * kStride + q % each * 4;
      float x[4] = {this->quads[e].x, this->quads[e].y, this->quads[e].z, this->quads[e].w};
      StoreVec<4>(high + at, x);
      if constexpr (!Operand::kBfloat16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          bfloat16 rounded;
          GpuFromFloat(x[i], &rounded);
          x[i] -= GpuToFloat(rounded);
        }
        StoreVec<4>(low + at, x);
      }
    }
  }
  // The 16 x 16 block of rows (or columns) from `first` on.
  static __device__ __forceinline__ void Load(const bfloat16* shared, int first, uint32_t (&r)[4]) {
    const int lane = threadIdx.x % 32, block = lane / 8;
    const int row = first + block % 2 * 8, k = block / 2 * 8;
    LoadBlocks<!kAlongK>(
        kAlongK ? shared + (row + lane % 8) * kStride + k : shared + (k + lane % 8) * kStride + row, r);
  }
};

template <class Shape, bool kAAlongK, bool kBAlongK, typename A, typename B, typename EachK,
          std::enable_if_t<Shape::kTensorCores, int> = 0>
__device__ __forceinline__ void MultiplyTile(const A& a, const B& b, int begin, int end, float* shared,
                                             float (&acc)[Shape::kTM][Shape::kTN], const EachK& each_k) {
  using PieceA = SplitPiece<Shape::kM, kAAlongK, A>;
  using PieceB = SplitPiece<Shape::kN, kBAlongK, B>;
  bfloat16* high_a = reinterpret_cast<bfloat16*>(shared);
  bfloat16 *low_a = high_a + Shape::kA, *high_b = low_a + Shape::kA, *low_b = high_b + Shape::kB;
  constexpr int kDown = Shape::kWarpM / 16, kAcross = Shape::kWarpN / 8;
  float sum[kDown][kAcross][4] = {};
  PieceA piece_a;
  PieceB piece_b;
  piece_a.Fetch(a, begin);
  piece_b.Fetch(b, begin);
  for (int k = begin; k < end; k += kTileK) {
    __syncthreads();  // the last piece has been used
    piece_a.Store(high_a, low_a);
    piece_b.Store(high_b, low_b);
    __syncthreads();
    if (k + kTileK < end) {
      piece_a.Fetch(a, k + kTileK);
      piece_b.Fetch(b, k + kTileK);
    }
    each_k([&](int row, int kk) {
      const int at = kAAlongK ? row * PieceA::kStride + kk : kk * PieceA::kStride + row;
      return GpuToFloat(high_a[at]) + (A::kBfloat16 ? 0.f : GpuToFloat(low_a[at]));
    });
    uint32_t x[kDown][4], x_low[kDown][4];
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      PieceA::Load(high_a, Shape::FirstRow() + i * 16, x[i]);
      if constexpr (!A::kBfloat16) PieceA::Load(low_a, Shape::FirstRow() + i * 16, x_low[i]);
    }
#pragma unroll
    for (int j = 0; j < kAcross; j += 2) {
      uint32_t y[4], y_low[4];
      PieceB::Load(high_b, Shape::FirstColumn() + j * 8, y);
      if constexpr (!B::kBfloat16) PieceB::Load(low_b, Shape::FirstColumn() + j * 8, y_low);
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // small terms first
          if constexpr (!A::kBfloat16) MultiplyBlocks(sum[i][j + half], x_low[i], y[half], y[half + 2]);
          if constexpr (!B::kBfloat16) MultiplyBlocks(sum[i][j + half], x[i], y_low[half], y_low[half + 2]);
          MultiplyBlocks(sum[i][j + half], x[i], y[half], y[half + 2]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Shape::kTM; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kTN; ++j) acc[i][j] += sum[i / 2][j / 2][i % 2 * 2 + j % 2];
  }
}

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_MMA_TILE_CUH_
