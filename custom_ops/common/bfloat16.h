// bfloat16 storage without a framework: the upper half of a float32, rounded to nearest even. Arithmetic is float32.
#ifndef LARGEOUT_COMMON_BFLOAT16_H_
#define LARGEOUT_COMMON_BFLOAT16_H_

#include <cstdint>
#include <cstring>

namespace largeout {

struct bfloat16 {
  uint16_t bits;
};
static_assert(sizeof(bfloat16) == 2, "bfloat16 is stored in two bytes");

// Static (internal linkage): each instruction-set level keeps its own copy, see cmake/check_isa_symbols.cmake.
static inline float ToFloat(float x) { return x; }
static inline float ToFloat(bfloat16 x) {
  uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

static inline void FromFloat(float value, float* out) { *out = value; }
static inline void FromFloat(float value, bfloat16* out) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN stays NaN (and quiet)
    out->bits = static_cast<uint16_t>((bits >> 16) | 0x0040u);
    return;
  }
  bits += 0x7fffu + ((bits >> 16) & 1u);
  out->bits = static_cast<uint16_t>(bits >> 16);
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_BFLOAT16_H_
