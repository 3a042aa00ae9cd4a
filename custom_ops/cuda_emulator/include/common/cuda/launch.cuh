// In the place of common/cuda/launch.cuh.
#ifndef LARGEOUT_CUDA_EMULATOR_INCLUDE_COMMON_CUDA_LAUNCH_CUH_
#define LARGEOUT_CUDA_EMULATOR_INCLUDE_COMMON_CUDA_LAUNCH_CUH_

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include "common/cuda/cuda.h"
#include "cuda_emulator/block.h"

namespace largeout {
namespace emulation {

template <typename... Parameters>
class JobOf final : public Job {
 public:
  using Kernel = void (*)(Parameters...);
  JobOf(Kernel kernel, Parameters... values) : kernel_(kernel), values_(std::move(values)...) {}
  const void* kernel() const override { return reinterpret_cast<const void*>(kernel_); }
  void Call() const override {
    std::apply([this](const Parameters&... values) { CallWith(kernel_, values...); }, values_);
  }

 private:
  // By value: each thread has its own parameters, on its own stack.
  static void CallWith(Kernel kernel, Parameters... values) {
    EnterKernel();
    kernel(values...);
    LeaveKernel();
  }

  Kernel kernel_;
  std::tuple<Parameters...> values_;
};

}  // namespace emulation

// Two at most, so that grid-stride loops have several turns in small tests; but for WholeGrids.
inline unsigned GridStrideBlocks(int64_t units, int64_t most) {
  return static_cast<unsigned>(std::min({units, most, emulation::most_stride_blocks}));
}

template <typename... Parameters, typename... Arguments>
int Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, CUstream_st* /*stream*/,
           Arguments&&... arguments) {
  if (shared_bytes > 0)
    LARGEOUT_CUDA_RETURN(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(shared_bytes)));
  return emulation::Run(
      emulation::JobOf<Parameters...>(kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...),
      grid, block, shared_bytes);
}

template <typename T>
T* DynamicShared() {
  return reinterpret_cast<T*>(emulation::running.shared);
}

}  // namespace largeout

#endif  // LARGEOUT_CUDA_EMULATOR_INCLUDE_COMMON_CUDA_LAUNCH_CUH_
