#include "common/cuda/launch.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

__global__ void Round(const float* from, int64_t n, bfloat16* to) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) GpuFromFloat(from[i], to + i);
}

}  // namespace

const char* CudaErrorName(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int CopyToHostCuda(const void* device, int64_t bytes, void* host, GpuStream stream) {
  LARGEOUT_CUDA_RETURN(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
  return static_cast<int>(cudaStreamSynchronize(stream));
}

int CopyToDeviceCuda(const void* host, int64_t bytes, void* device, GpuStream stream) {
  if (bytes == 0) return 0;
  return static_cast<int>(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
}

int CopyOnDeviceCuda(const void* from, int64_t bytes, void* to, GpuStream stream) {
  return static_cast<int>(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}

int RoundCuda(const float* from, int64_t n, bfloat16* to, GpuStream stream) {
  if (n == 0) return 0;
  return Launch(Round, static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, 0, stream, from, n,
                to);
}

}  // namespace largeout
