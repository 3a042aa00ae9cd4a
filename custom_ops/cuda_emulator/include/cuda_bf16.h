// In the place of CUDA's.
#ifndef LARGEOUT_CUDA_EMULATOR_INCLUDE_CUDA_BF16_H_
#define LARGEOUT_CUDA_EMULATOR_INCLUDE_CUDA_BF16_H_

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits;
};

// To nearest even; NaN becomes 0x7fff, as on a card.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }

#endif  // LARGEOUT_CUDA_EMULATOR_INCLUDE_CUDA_BF16_H_
