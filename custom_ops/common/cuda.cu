#include "common/cuda.h"

namespace largeout {

const char* CudaErrorName(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

}  // namespace largeout
