// Tests of what multiplies in bfloat16 where the machine can.
#ifndef LARGEOUT_GEMM_EVERY_PRODUCT_H_
#define LARGEOUT_GEMM_EVERY_PRODUCT_H_

#include "common/test/levels.h"
#include "gemm/gemm.h"

namespace largeout {

// Runs the body of a case beside hidden vectors of type H at every level. If they are of bfloat16, also with
// products of it: the machine's, or where it has none, those of plain instructions. On a GPU once.
template <typename Device, typename H, typename Body>
void ForEachProduct(const Body& body) {
  constexpr bool kHalves = sizeof(H) == 2;
  ForEachLevel<Device, kHalves ? Isa::kV4Bfloat16 : Isa::kV4>(body);
  if (!kOnCpu<Device> || !kHalves || BestIsa() == Isa::kV4Bfloat16) return;
  SetIsa(Isa::kV3);
  UsePlainBfloat16Products(true);
  body();
  UsePlainBfloat16Products(false);
  SetIsa(BestIsa());
}

// Whether products are of bfloat16 there, so that rows of float32 and gradients of logits are rounded.
template <typename Device, typename H>
bool MultipliesInBfloat16() {
  return sizeof(H) == 2 && (!kOnCpu<Device> || Bfloat16Products() != nullptr);
}

}  // namespace largeout

#endif  // LARGEOUT_GEMM_EVERY_PRODUCT_H_
