// Factors of products, for what tests expect of products in bfloat16.
#ifndef LARGEOUT_COMMON_FACTORS_H_
#define LARGEOUT_COMMON_FACTORS_H_

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

}  // namespace largeout

#endif  // LARGEOUT_COMMON_FACTORS_H_
