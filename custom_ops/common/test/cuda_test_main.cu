// The main of every test of CUDA kernels: skips (77) without a GPU. The emulation has one.
#include <cuda_runtime.h>

#include <cstdio>

#include "common/test/check.h"

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  return largeout::TestMain();
}
