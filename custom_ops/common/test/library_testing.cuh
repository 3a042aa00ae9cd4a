// Helpers of tests of products by cuBLASLt (common/cuda/blas.h).
#ifndef LARGEOUT_COMMON_LIBRARY_TESTING_CUH_
#define LARGEOUT_COMMON_LIBRARY_TESTING_CUH_

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/bfloat16.h"
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

// The largest difference, or NaN.
template <typename X>
double Worst(const std::vector<X>& got, const std::vector<double>& want) {
  double worst = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::fabs(double(ToFloat(got[i])) - want[i]);
    if (!(off <= worst)) worst = off;
  }
  return worst;
}

// The library and the kernels round the same factors: `got` is at most `factor` times as far from `want` as what the
// kernels give, and `rest` of the largest value.
template <typename X>
void CheckAsClose(const std::vector<X>& got, const std::vector<X>& by_kernels, const std::vector<double>& want,
                  double factor, double rest) {
  double size = 1.0;
  for (const double x : want) size = std::max(size, std::fabs(x));
  CHECK_TRUE(got.size() == by_kernels.size() && got.size() <= want.size());
  if (got.size() <= want.size())
    CHECK_TRUE(Worst(got, want) <= factor * Worst(by_kernels, want) + rest * size);
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_LIBRARY_TESTING_CUH_
