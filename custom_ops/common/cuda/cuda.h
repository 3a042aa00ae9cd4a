// Types and helpers of all CUDA code. The first part may be included anywhere, the second only by .cu files.
//
// A function that launches kernels takes raw device pointers, sizes and a stream, launches on that stream, and
// returns the first CUDA error as an int (0: success; CudaErrorName names it). Scratch memory comes from the
// caller's Scratch. A function that needs a number on the host says so in its contract; no other one synchronizes.
#ifndef LARGEOUT_COMMON_CUDA_H_
#define LARGEOUT_COMMON_CUDA_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/bfloat16.h"
#include "common/host_device.h"
#include "common/scratch.h"

struct CUstream_st;

namespace largeout {

using GpuStream = CUstream_st*;

class LateReport;

// CpuCall's counterpart. With `late` (late_report.h) nothing waits to learn whether indices are bad: they are
// dropped, and a later call reports them.
struct GpuCall {
  using Late = LateReport;
  GpuStream stream;
  Scratch* scratch;
  LateReport* late = nullptr;
  bool tf32 = false;     // products of float32 may round their factors to TF32 (common/cuda/gemm/)
  bool library = false;  // large products may be those of cuBLASLt (common/cuda/blas.h)
};

const char* CudaErrorName(int error);

// The name of an error; where the library has no code for the GPU, what it has code for and what to do.
std::string CudaErrorText(int error);
// The latter, for a GPU of compute capability 10 x major + minor.
std::string NoCodeText(int capability);

// Copies from the device to the host and waits for it.
int CopyToHostCuda(const void* device, int64_t bytes, void* host, GpuStream stream);

// Copies from the host to the device, in the order of the stream. Ordinary memory may be reused at once, pinned memory
// only when the stream has come past the copy.
int CopyToDeviceCuda(const void* host, int64_t bytes, void* device, GpuStream stream);

// Copies from device memory to device memory, in the order of the stream.
int CopyOnDeviceCuda(const void* from, int64_t bytes, void* to, GpuStream stream);

// Rounds n floats in device memory to the nearest bfloat16, in the order of the stream.
int RoundCuda(const float* from, int64_t n, bfloat16* to, GpuStream stream);

}  // namespace largeout

#ifdef LARGEOUT_CUDA_CODE
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define LARGEOUT_CUDA_RETURN(call)                               \
  do {                                                           \
    const cudaError_t error_ = (call);                           \
    if (error_ != cudaSuccess) return static_cast<int>(error_);  \
  } while (0)

namespace largeout {

__device__ __forceinline__ float GpuToFloat(float x) { return x; }
__device__ __forceinline__ float GpuToFloat(bfloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ __forceinline__ void GpuFromFloat(float value, float* out) { *out = value; }
__device__ __forceinline__ void GpuFromFloat(float value, bfloat16* out) {
  out->bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

// For words that threads write while others write or read them, such as a flag that all set alike.
template <typename T>
__device__ __forceinline__ T LoadRelaxed(const T* address) {
  return *reinterpret_cast<const volatile T*>(address);
}
template <typename T>
__device__ __forceinline__ void StoreRelaxed(T* address, T value) {
  *reinterpret_cast<volatile T*>(address) = value;
}

}  // namespace largeout
#endif  // LARGEOUT_CUDA_CODE

#endif  // LARGEOUT_COMMON_CUDA_H_
