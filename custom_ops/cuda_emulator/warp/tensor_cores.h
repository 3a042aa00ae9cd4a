// The functions of common/cuda/tensor_cores.cuh, in the emulation.
#ifndef LARGEOUT_CUDA_EMULATOR_WARP_TENSOR_CORES_H_
#define LARGEOUT_CUDA_EMULATOR_WARP_TENSOR_CORES_H_

#include <cuda_bf16.h>

#include <cstdint>

#include "common/bfloat16.h"

namespace largeout {
namespace emulation {

void LoadBlocks(const void* row, uint32_t* r, bool transpose, const char* file, int line);
void Multiply(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, bool tf32, const char* file, int line);
void BeginSharedCopy(void* shared, const void* global, int bytes, int size);
void CommitCopies();
void FinishCopies(int left);

}  // namespace emulation

template <bool kTranspose>
inline void LoadBlocks(const void* row, uint32_t (&r)[4], const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  emulation::LoadBlocks(row, r, kTranspose, file, line);
}
inline void MultiplyBlocks(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                           const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulation::Multiply(c, a, b0, b1, false, file, line);
}
inline void MultiplyTf32Blocks(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                               const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulation::Multiply(c, a, b0, b1, true, file, line);
}
inline uint32_t PackBfloat16(float x, float y) {
  return static_cast<uint32_t>(__float2bfloat16_rn(x).bits) |
         static_cast<uint32_t>(__float2bfloat16_rn(y).bits) << 16;
}
template <int kSize>
inline void BeginCopy(void* shared, const void* global, int bytes = kSize) {
  emulation::BeginSharedCopy(shared, global, bytes, kSize);
}
inline void CommitCopies() { emulation::CommitCopies(); }
template <int kLeft>
inline void WaitForCopies() {
  emulation::FinishCopies(kLeft);
}

}  // namespace largeout

#endif  // LARGEOUT_CUDA_EMULATOR_WARP_TENSOR_CORES_H_
