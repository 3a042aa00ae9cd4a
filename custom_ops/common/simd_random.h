// common/random.h for vectors. Include it in x_simd.cc files only, as common/simd.h.
#ifndef LARGEOUT_COMMON_SIMD_RANDOM_H_
#define LARGEOUT_COMMON_SIMD_RANDOM_H_

#include "common/random.h"
#include "common/simd.h"

namespace largeout {
namespace LARGEOUT_ISA {

// 0, 1, ...
LARGEOUT_INLINE VU LaneNumbers() {
  VU x;
  for (int i = 0; i < kLanes; ++i) x[i] = i;
  return x;
}

// RandomBits of each lane.
LARGEOUT_INLINE VU RandomBits(VU folded, VU low) {
  VU x = low * kGamma32 + folded;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// RoundStochastically of each lane, in the upper half of the result, whose lower half is 0.
LARGEOUT_INLINE VF RoundStochastically(VF value, VU random) {
  const VU bits = (VU)value, rounded = (bits + (random & 0xffffu)) & 0xffff0000u;
  const VU is_nan = (VU)((bits & 0x7fffffffu) > 0x7f800000u);
  return (VF)((is_nan & 0x7fc00000u) | (~is_nan & rounded));
}

}  // namespace LARGEOUT_ISA
}  // namespace largeout

#endif  // LARGEOUT_COMMON_SIMD_RANDOM_H_
