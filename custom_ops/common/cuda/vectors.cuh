// Loads and stores of a few neighbouring elements, float32 in registers whatever they are in memory.
#ifndef LARGEOUT_COMMON_CUDA_VECTORS_CUH_
#define LARGEOUT_COMMON_CUDA_VECTORS_CUH_

#include "common/cuda/cuda.h"

namespace largeout {

__host__ __device__ constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Elements p[0 .. kVec), kVec 1, 2 or 4; p is aligned to kVec elements.
template <int kVec>
__device__ __forceinline__ void LoadVec(const float* p, float (&v)[kVec]) {
  if constexpr (kVec == 4) {
    const float4 x = *reinterpret_cast<const float4*>(p);
    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
  } else if constexpr (kVec == 2) {
    const float2 x = *reinterpret_cast<const float2*>(p);
    v[0] = x.x, v[1] = x.y;
  } else {
    v[0] = *p;
  }
}
template <int kVec>
__device__ __forceinline__ void LoadVec(const bfloat16* p, float (&v)[kVec]) {
  if constexpr (kVec == 4) {
    const uint2 x = *reinterpret_cast<const uint2*>(p);
    v[0] = __uint_as_float(x.x << 16), v[1] = __uint_as_float(x.x & 0xffff0000u);
    v[2] = __uint_as_float(x.y << 16), v[3] = __uint_as_float(x.y & 0xffff0000u);
  } else if constexpr (kVec == 2) {
    const uint32_t x = *reinterpret_cast<const uint32_t*>(p);
    v[0] = __uint_as_float(x << 16), v[1] = __uint_as_float(x & 0xffff0000u);
  } else {
    v[0] = GpuToFloat(*p);
  }
}
template <int kVec>
__device__ __forceinline__ void StoreVec(float* p, const float (&v)[kVec]) {
  if constexpr (kVec == 4) {
    *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
  } else if constexpr (kVec == 2) {
    *reinterpret_cast<float2*>(p) = make_float2(v[0], v[1]);
  } else {
    *p = v[0];
  }
}
template <int kVec>
__device__ __forceinline__ void StoreVec(bfloat16* p, const float (&v)[kVec]) {
  bfloat16 x[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i) GpuFromFloat(v[i], &x[i]);
  if constexpr (kVec == 4) {
    *reinterpret_cast<uint2*>(p) = make_uint2(x[0].bits | static_cast<uint32_t>(x[1].bits) << 16,
                                              x[2].bits | static_cast<uint32_t>(x[3].bits) << 16);
  } else if constexpr (kVec == 2) {
    *reinterpret_cast<uint32_t*>(p) = x[0].bits | static_cast<uint32_t>(x[1].bits) << 16;
  } else {
    *p = x[0];
  }
}

// Whether rows may be read in 16-byte pieces (8 for bfloat16).
inline bool RowsAligned(int64_t dim, const void* a, const void* b, const void* c = nullptr) {
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return dim % 4 == 0 && (address(a) | address(b) | address(c)) % 16 == 0;
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_VECTORS_CUH_
