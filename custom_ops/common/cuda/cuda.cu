#include "common/cuda/cuda.h"

namespace largeout {

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

}  // namespace largeout
