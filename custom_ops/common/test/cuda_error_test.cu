// Tests of what a user reads whose GPU the library has no code for.
#include <string>

#include "common/test/cuda_testing.cuh"

namespace largeout {
namespace {

bool Has(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

LARGEOUT_TEST(AGpuThatIsTooOld) {
  for (const int capability : {70, 75}) {
    const std::string text = NoCodeText(capability);
    CHECK_TRUE(Has(text, capability == 70 ? "compute capability 7.0," : "compute capability 7.5,"));
    CHECK_TRUE(Has(text, "They need 8.0 or newer.") && Has(text, "CUDA_VISIBLE_DEVICES"));
    CHECK_TRUE(!Has(text, "pip install"));
  }
}

LARGEOUT_TEST(AGpuThatTheBuildLeavesOut) {
  const std::string text = NoCodeText(120);
  CHECK_TRUE(Has(text, "compute capability 12.0,") && Has(text, "LARGEOUT_CUDA_ARCHITECTURES=120"));
#ifdef LARGEOUT_EMULATE_CUDA
  CHECK_TRUE(Has(text, "built for 8.0, 9.0. "));
#endif
}

LARGEOUT_TEST(ErrorsOfAGpuWithoutCode) {
  int major, minor;
  CUDA_OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  CUDA_OK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  for (const cudaError_t error : {cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction})
    CHECK_TRUE(CudaErrorText(error) == NoCodeText(10 * major + minor));
  CHECK_TRUE(CudaErrorText(cudaErrorInvalidValue) == CudaErrorName(cudaErrorInvalidValue));
}

}  // namespace
}  // namespace largeout
