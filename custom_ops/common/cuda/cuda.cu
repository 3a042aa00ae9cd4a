#include "common/cuda/launch.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

__global__ void Round(const float* from, int64_t n, bfloat16* to) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) GpuFromFloat(from[i], to + i);
}

std::string CapabilityName(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace

const char* CudaErrorName(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

std::string NoCodeText(int capability) {
  std::string built_for;
  for (const int architecture : {__CUDA_ARCH_LIST__})  // nvcc's: 800, 900
    built_for += (built_for.empty() ? "" : ", ") + CapabilityName(architecture / 10);
  const std::string text = "the GPU has compute capability " + CapabilityName(capability) +
                           ", and the CUDA kernels were built for " + built_for + ". ";
  if (capability < 80)
    return text + "They need 8.0 or newer. Set CUDA_VISIBLE_DEVICES to an empty string to run on the CPU.";
  return text +
         "Build them for this GPU: pip install . "
         "--config-settings=cmake.define.LARGEOUT_CUDA_ARCHITECTURES=" +
         std::to_string(capability);
}

std::string CudaErrorText(int error) {
  int device, major, minor;
  // Launches fail with the first one, some queries of a kernel with the second one.
  if ((error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) &&
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess)
    return NoCodeText(10 * major + minor);
  return CudaErrorName(error);
}

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
