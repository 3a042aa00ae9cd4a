// The launch of every kernel: Launch(kernel, grid, block, shared_bytes, stream, args...). One place, so that
// each launch is checked.
#ifndef LARGEOUT_COMMON_CUDA_LAUNCH_CUH_
#define LARGEOUT_COMMON_CUDA_LAUNCH_CUH_

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/cuda/cuda.h"

namespace largeout {

// Blocks of a kernel that goes through `units` pieces of work in a grid-stride loop: at most `most`.
inline unsigned GridStrideBlocks(int64_t units, int64_t most) {
  return static_cast<unsigned>(std::min(units, most));
}

// Arguments are converted to the kernel's parameters. Returns 0 or the error of the launch (an empty grid is
// one), not of the kernel, which may not have run yet. A template needs all of its arguments:
// Launch(Fill<float>, ...).
template <typename... Parameters, typename... Arguments>
int Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, GpuStream stream,
           Arguments&&... arguments) {
  if (shared_bytes > 0)  // the kernel's own counts too: together they may be beyond what needs no asking
    LARGEOUT_CUDA_RETURN(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(shared_bytes)));
  // clang-format off
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  // clang-format on
  return static_cast<int>(cudaGetLastError());
}

// The shared_bytes of the launch, as an array of T: the same memory for each T.
template <typename T>
__device__ __forceinline__ T* DynamicShared() {
  extern __shared__ __align__(16) char largeout_dynamic_shared[];
  return reinterpret_cast<T*>(largeout_dynamic_shared);
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_LAUNCH_CUH_
