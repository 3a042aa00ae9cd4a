// The calls of the CUDA runtime. Streams and events have nothing to do: everything has run when a launch
// returns.
#include <chrono>
#include <cstdio>
#include <cstring>

#include "cuda_emulator/include/cuda_runtime.h"
#include "cuda_emulator/memory.h"
#include "cuda_emulator/report.h"

struct CUstream_st {};
struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};

namespace {

using namespace largeout::emulation;

cudaError_t last_error = cudaSuccess, pending_error = cudaSuccess;

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// What kernels that ran before have left.
int64_t waits = 0;

cudaError_t Waited() {
  ++waits;
  const cudaError_t error = pending_error;
  pending_error = cudaSuccess;
  return Return(error);
}

// A copy or fill of device memory must be in one allocation.
bool Inside(const void* data, size_t bytes, const char* what) {
  if (OnDevice(data, bytes)) return true;
  Report(Format("out of bounds: %s of %zu bytes at ", what, bytes) + Place(reinterpret_cast<uintptr_t>(data)),
         __builtin_return_address(0));
  return false;
}

cudaError_t CopyBytes(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (to_device && !Inside(to, bytes, "a copy to")) return Return(cudaErrorInvalidValue);
  if (from_device && !Inside(from, bytes, "a copy from")) return Return(cudaErrorInvalidValue);
  if ((!to_device && OnDevice(to, 1)) || (!from_device && OnDevice(from, 1)))
    return Return(cudaErrorInvalidValue);
  std::memmove(to, from, bytes);
  CopiedTo(to, from, bytes);
  return cudaSuccess;
}

cudaError_t Fill(void* to, int value, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (!Inside(to, bytes, "a fill")) return Return(cudaErrorInvalidValue);
  std::memset(to, value, bytes);
  CopiedTo(to, nullptr, bytes);
  return cudaSuccess;
}

}  // namespace

namespace largeout {
namespace emulation {
void SetPendingError(cudaError_t error) { pending_error = error; }
int64_t Waits() { return waits; }
}  // namespace emulation
}  // namespace largeout

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDevicePointer:
      return "invalid device pointer";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
  }
  return "unknown error";
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : Return(cudaErrorInvalidValue); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = cudaDeviceProp();
  std::snprintf(p->name, sizeof(p->name), "emulation");
  p->totalGlobalMem = kDeviceBytes;
  p->sharedMemPerBlock = 48 << 10, p->sharedMemPerBlockOptin = 227 << 10;
  p->multiProcessorCount = 132, p->major = 9, p->minor = 0, p->warpSize = 32, p->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return Return(cudaErrorInvalidValue);
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, device);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return *value = properties.major, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      return *value = properties.minor, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return *value = static_cast<int>(properties.sharedMemPerBlockOptin), cudaSuccess;
  }
  return Return(cudaErrorInvalidValue);
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = bytes == 0 ? nullptr : AllocateDevice(bytes);
  return bytes == 0 || *data != nullptr ? cudaSuccess : Return(cudaErrorMemoryAllocation);
}
// Memory that both see: the host stores to it as it likes, so all of it counts as written.
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  const cudaError_t error = cudaMalloc(data, bytes);
  if (error != cudaSuccess) return error;
  ShareWithHost(*data);
  return Fill(*data, 0, bytes);
}
cudaError_t cudaFree(void* data) {
  if (data == nullptr || FreeDevice(data)) return Waited();
  Report("freed twice, or never allocated: " + Place(reinterpret_cast<uintptr_t>(data)),
         __builtin_return_address(0));
  return Return(cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
  *left = DeviceBytesLeft(), *total = kDeviceBytes;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = Waited();
  return error != cudaSuccess ? error : CopyBytes(to, from, bytes, kind);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return CopyBytes(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return Fill(to, value, bytes); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return Fill(to, value, bytes);
}
cudaError_t cudaDeviceSynchronize() { return Waited(); }
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = new CUstream_st, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return Waited(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return Waited(); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}
