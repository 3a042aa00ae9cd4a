// In the place of cub's, as a plain loop.
#ifndef LARGEOUT_CUDA_EMULATOR_INCLUDE_CUB_DEVICE_DEVICE_SCAN_CUH_
#define LARGEOUT_CUDA_EMULATOR_INCLUDE_CUB_DEVICE_DEVICE_SCAN_CUH_

#include "common/cuda/launch.cuh"
#include "cuda_emulator/cub/memory.h"

namespace cub {

struct DeviceScan {
  template <typename In, typename Out, typename N>
  static cudaError_t InclusiveSum(void* temp, size_t& temp_bytes, In in, Out out, N n,
                                  cudaStream_t = nullptr) {
    return Scan(
        temp, temp_bytes, in, out, n, [](const auto& a, const auto& b) { return a + b; },
        largeout::emulation::ValueOf<In>(), true);
  }
  template <typename In, typename Out, typename N>
  static cudaError_t ExclusiveSum(void* temp, size_t& temp_bytes, In in, Out out, N n,
                                  cudaStream_t = nullptr) {
    return Scan(
        temp, temp_bytes, in, out, n, [](const auto& a, const auto& b) { return a + b; },
        largeout::emulation::ValueOf<In>(), false);
  }
  template <typename In, typename Out, typename Op, typename Init, typename N>
  static cudaError_t ExclusiveScan(void* temp, size_t& temp_bytes, In in, Out out, Op op, Init init, N n,
                                   cudaStream_t = nullptr) {
    return Scan(temp, temp_bytes, in, out, n, op, largeout::emulation::ValueOf<In>(init), false);
  }
  template <typename In, typename Out, typename Op, typename N>
  static cudaError_t InclusiveScan(void* temp, size_t& temp_bytes, In in, Out out, Op op, N n,
                                   cudaStream_t = nullptr) {
    return Scan(temp, temp_bytes, in, out, n, op, largeout::emulation::ValueOf<In>(), true);
  }

 private:
  template <typename In, typename Out, typename Op, typename Value>
  static cudaError_t Scan(void* temp, size_t& temp_bytes, In in, Out out, int64_t n, Op op, Value sum,
                          bool inclusive) {
    const cudaError_t error =
        largeout::emulation::CubTemp(temp, &temp_bytes, (n / 1024 + 1) * sizeof(Value) + 512);
    if (temp == nullptr || error != cudaSuccess || n == 0) return error;
    return static_cast<cudaError_t>(
        largeout::Launch(InTurn<In, Out, Op, Value>, 1, 1, 0, nullptr, in, out, n, op, sum, inclusive));
  }

  // A thread alone: what iterators read and write is looked at as in any kernel.
  template <typename In, typename Out, typename Op, typename Value>
  static void InTurn(In in, Out out, int64_t n, Op op, Value sum, bool inclusive) {
    for (int64_t i = 0; i < n; ++i) {
      const Value before = sum, value = in[i];
      sum = i == 0 && inclusive ? value : static_cast<Value>(op(sum, value));
      out[i] = inclusive ? sum : before;
    }
  }
};

}  // namespace cub

#endif  // LARGEOUT_CUDA_EMULATOR_INCLUDE_CUB_DEVICE_DEVICE_SCAN_CUH_
