// Factors of products, for what tests expect of products in bfloat16 and TF32.
#ifndef LARGEOUT_COMMON_FACTORS_H_
#define LARGEOUT_COMMON_FACTORS_H_

#include <cstdint>
#include <cstring>

#include "common/bfloat16.h"

namespace largeout {

// As it is, or rounded to bfloat16.
template <typename X>
double Factor(X x, bool rounded) {
  if (!rounded) return ToFloat(x);
  bfloat16 factor;
  FromFloat(ToFloat(x), &factor);
  return ToFloat(factor);
}

// Rounded to the 11 bits of TF32, half away from zero.
inline double Tf32Factor(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x1000u) & 0xffffe000u;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_FACTORS_H_
