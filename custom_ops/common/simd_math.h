// Elementary functions of vectors (common/simd.h), for x_simd.cc files.
#ifndef LARGEOUT_COMMON_SIMD_MATH_H_
#define LARGEOUT_COMMON_SIMD_MATH_H_

#include "common/simd.h"

namespace largeout {
namespace LARGEOUT_ISA {

// exp for x <= 0, within 2 ulp; below -87.3 (where the result would be subnormal) zero. NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts; e^r by its Taylor series to r^7 (remainder below
// 1e-8).
LARGEOUT_INLINE VF Exp(VF x) {
  const VF lowest = Set(-87.33654f);
  const VI below = x < lowest;
  const VF clamped = Where(below, lowest, x);
  const VF magic = Set(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const VF shifted = Fma(clamped, Set(1.44269504f), magic);
  const VF n = shifted - magic;
  VF r = Fma(n, Set(-0.693145752f), clamped);
  r = Fma(n, Set(-1.42860677e-6f), r);
  VF p = Set(1.98412698e-4f);
  p = Fma(p, r, Set(1.38888889e-3f));
  p = Fma(p, r, Set(8.33333333e-3f));
  p = Fma(p, r, Set(4.16666667e-2f));
  p = Fma(p, r, Set(1.66666667e-1f));
  p = Fma(p, r, Set(0.5f));
  p = Fma(p, r * r, r);
  p = p + Set(1.f);
  const VF scale = (VF)(((VI)shifted - 0x4b400000 + 127) << 23);
  return Where(below, Zero(), p * scale);
}

// log(1 + u) for 0 <= u <= 1, within 3 ulp: 2 atanh(s) with s = u / (2 + u) <= 1/3, by its series to s^13
// (remainder below 2e-8 of the result). NaN stays NaN.
LARGEOUT_INLINE VF Log1p(VF u) {
  const VF s = u / (Set(2.f) + u), t = s * s;
  VF p = Set(2.f / 13.f);
  p = Fma(p, t, Set(2.f / 11.f));
  p = Fma(p, t, Set(2.f / 9.f));
  p = Fma(p, t, Set(2.f / 7.f));
  p = Fma(p, t, Set(2.f / 5.f));
  p = Fma(p, t, Set(2.f / 3.f));
  p = Fma(p, t, Set(2.f));
  return p * s;
}

}  // namespace LARGEOUT_ISA
}  // namespace largeout

#endif  // LARGEOUT_COMMON_SIMD_MATH_H_
