#include "gemm/gemm.h"

#include <atomic>

namespace largeout {
namespace {

std::atomic<bool> plain{false};

}  // namespace

void UsePlainBfloat16Products(bool use) { plain = use; }

const GemmKernels* Bfloat16Products() {
  const GemmKernels& kernels = LARGEOUT_SELECT(kGemmBfloat16);
  return (kernels.plain ? plain.load() : CurrentIsa() == Isa::kV4Bfloat16) ? &kernels : nullptr;
}

}  // namespace largeout
