// What tests of products by cuBLASLt (common/cuda/blas.h) share.
#ifndef LARGEOUT_COMMON_LIBRARY_TESTING_CUH_
#define LARGEOUT_COMMON_LIBRARY_TESTING_CUH_

#include "common/cuda/blas.h"
#include "common/test/cuda_testing.cuh"

#ifdef LARGEOUT_EMULATE_CUDA
#include "cuda_emulator/emulation.h"
#endif

namespace largeout {

// The library of this process. Null, and a word about it: there is none.
inline Blas* FoundLibrary() {
  TestCall<GpuCall> call;
  Blas* const blas = Blas::OfDevice(call.get());
  if (blas == nullptr) std::printf("cuBLASLt was not found: left out\n");
  return blas;
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_LIBRARY_TESTING_CUH_
