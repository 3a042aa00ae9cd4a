#include "common/cuda.h"

namespace largeout {

const char* CudaErrorName(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int CopyToHostCuda(const void* device, int64_t bytes, void* host, GpuStream stream) {
  LARGEOUT_CUDA_RETURN(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
  return static_cast<int>(cudaStreamSynchronize(stream));
}

}  // namespace largeout
