#include "cuda_emulator/cub/memory.h"

#include "cuda_emulator/memory.h"
#include "cuda_emulator/report.h"

namespace largeout {
namespace emulation {

cudaError_t CubTemp(void* temp, size_t* temp_bytes, size_t wanted) {
  if (temp == nullptr) return *temp_bytes = wanted, cudaSuccess;
  if (*temp_bytes < wanted) return cudaErrorInvalidValue;
  return cudaMemsetAsync(temp, 0xa5, wanted);
}

cudaError_t ReadDevice(const void* device, size_t bytes, void* host) {
  if (!AllWritten(device, bytes)) {
    Report(Format("not written: a call of cub reads %zu bytes at ", bytes) +
               Place(reinterpret_cast<uintptr_t>(device)),
           __builtin_return_address(0));
  }
  return cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost);
}

}  // namespace emulation
}  // namespace largeout
