// Helpers of the emulated calls of cub: the contract of their temporary memory, and arrays to the host and
// back.
#ifndef LARGEOUT_CUDA_EMULATOR_CUB_MEMORY_H_
#define LARGEOUT_CUDA_EMULATOR_CUB_MEMORY_H_

#include <cuda_runtime.h>

#include <iterator>
#include <vector>

namespace largeout {
namespace emulation {

template <typename Iterator>
using ValueOf = typename std::iterator_traits<Iterator>::value_type;

// Null: how many bytes are wanted. Else what is there is overwritten, and too little is an error.
cudaError_t CubTemp(void* temp, size_t* temp_bytes, size_t wanted);
// Reports what nobody has written.
cudaError_t ReadDevice(const void* device, size_t bytes, void* host);

template <typename T>
std::vector<T> FromDevice(const T* device, int64_t n) {
  std::vector<T> values(n);
  ReadDevice(device, n * sizeof(T), static_cast<void*>(values.data()));
  return values;
}

template <typename T>
cudaError_t ToDevice(const std::vector<T>& values, T* device) {
  return cudaMemcpyAsync(device, static_cast<const void*>(values.data()), values.size() * sizeof(T),
                         cudaMemcpyHostToDevice);
}

}  // namespace emulation
}  // namespace largeout

#endif  // LARGEOUT_CUDA_EMULATOR_CUB_MEMORY_H_
