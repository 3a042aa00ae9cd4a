// Reductions over the lanes of a whole warp.
#ifndef LARGEOUT_COMMON_CUDA_WARP_CUH_
#define LARGEOUT_COMMON_CUDA_WARP_CUH_

#include "common/cuda/cuda.h"

namespace largeout {

// The sum over the lanes, in every lane: the same order, so the same bits, each time.
template <typename T>
__device__ __forceinline__ T WarpSum(T x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// The largest of the lanes' integers, in every lane.
template <typename T>
__device__ __forceinline__ T WarpLargest(T x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_WARP_CUH_
