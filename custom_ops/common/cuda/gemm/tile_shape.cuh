// Tiles of matrix products on tensor cores: how large they are, and which of their elements a thread has.
#ifndef LARGEOUT_COMMON_CUDA_GEMM_TILE_SHAPE_CUH_
#define LARGEOUT_COMMON_CUDA_GEMM_TILE_SHAPE_CUH_

#include <type_traits>

#include "common/cuda/vectors.cuh"

namespace largeout {

// Conversions of float32 and bfloat16 factors to those of a tensor core. kDepth: the terms that one instruction
// sums.
//
// Tf32: both factors are float32, each the sum of two TF32 numbers, x = big + small, of 11 bits each. The
// three products but that of the small parts are summed: about 2^-22 of |x y| is lost. Where the call allows
// it (GpuCall::tf32) each is rounded to `big`, and there is one product: about 2^-11 of |x y| is lost.
struct Tf32 {
  static constexpr int kDepth = 8;
};
// Bf16: factors of bfloat16 are exact; a float32 one is the sum of two bfloat16, which keep 16 bits of it, or
// is rounded to one of them where the operand says so.
struct Bf16 {
  static constexpr int kDepth = 16;
};

constexpr int kTileK = 16;  // of the dimension that is summed over, in a piece of an operand

// kM x kN elements by WM x WN warps. Pieces of kStages steps are in shared memory.
template <class MmaKind, int M, int N, int WM, int WN, int Stages>
struct TileShape {
  using Mma = MmaKind;
  static constexpr int kStages = Stages;
  static constexpr int kM = M, kN = N, kThreads = WM * WN * 32;
  static constexpr int kRun = 2;                                     // neighbouring columns of a thread
  static constexpr int kWarpM = M / WM, kWarpN = N / WN;             // of a warp
  static constexpr int kTM = kWarpM / 16 * 2, kTN = kWarpN / 8 * 2;  // of a thread
  static constexpr int kAcross = WN * 4, kDown = WM * 8;             // threads of a row, of a column
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0 && kTileK % Mma::kDepth == 0, "whole blocks");
  static __device__ int FirstRow() { return threadIdx.x / 32 % WM * kWarpM; }
  static __device__ int FirstColumn() { return threadIdx.x / 32 / WM * kWarpN; }
  // The thread's i-th row and j-th column.
  static __device__ int Row(int i) { return FirstRow() + i / 2 * 16 + threadIdx.x % 32 / 4 + i % 2 * 8; }
  static __device__ int Column(int j) { return FirstColumn() + j / 2 * 8 + threadIdx.x % 4 * 2 + j % 2; }
  // The index of this thread among those of a row, and of a column.
  static __device__ int Across() { return threadIdx.x / 32 / WM * 4 + threadIdx.x % 4; }
  static __device__ int Down() { return threadIdx.x / 32 % WM * 8 + threadIdx.x % 32 / 4; }
};

// For tables of type T: LargeM, and SmallM for products of up to kSmallM rows, which wait for memory rather than
// for tensor cores: more stages of their copies are in flight.
constexpr int kTileThreads = 256, kTileBlocks = 2;  // of a block; blocks of a multiprocessor
constexpr int kTileRows = 128, kTileColumns = 128, kSmallM = 32;
template <typename T>
struct Tiles {
  using Mma = std::conditional_t<std::is_same<T, float>::value, Tf32, Bf16>;
  using LargeM = TileShape<Mma, kTileRows, kTileColumns, 4, 2, 3>;
  using SmallM = TileShape<Mma, kSmallM, kTileColumns, 1, 8, 5>;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_GEMM_TILE_SHAPE_CUH_
